"""What a new job may expect is within the money that there is for an hour."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Budget
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.planning.terms import Terms
from sublet.policies.price.prospect import prospect
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


@pytest.mark.parametrize(("usd_per_h", "gpus"), [("3", 1), ("5", 3), ("20", 8)])
def test_what_is_expected_under_a_limit_costs_no_more_in_all_rows_together(usd_per_h, gpus):
    offers = [an_offer("s", gpus=1, pool="p"), an_offer("d", gpus=1, usd_per_h="3", pool="p", market=Market.ON_DEMAND)]
    driver = Driver(offers, budget=Budget(burn=Price.from_usd_per_h(usd_per_h)))
    job = a_job(work=36_000.0, gpus=4, min_gpus=1, max_gpus=8, min_on_demand=1)
    found = prospect(Terms.from_snapshot(driver.kernel.snapshot()), job, 100.0)
    assert found is not None
    assert found.shape.gpus == gpus
    assert found.usd_per_h <= float(usd_per_h)
