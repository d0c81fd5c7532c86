"""What a new job may expect is within the money that there is for an hour."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.shape import Shape
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.policies.price.prospect import Prospect, hour_usd_of, prospect
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


@pytest.mark.parametrize(("usd_per_h", "gpus"), [("3", 1), ("5", 3), ("20", 8)])
def test_what_is_expected_under_a_limit_costs_no_more_in_all_rows_together(usd_per_h, gpus):
    offers = [an_offer("s", gpus=1, pool="p"), an_offer("d", gpus=1, usd_per_h="3", pool="p", market=Market.ON_DEMAND)]
    driver = Driver(offers, budget=Budget(burn=Usd.from_usd_per_h(usd_per_h)))
    job = a_job(work=36_000.0, gpus=4, min_gpus=1, max_gpus=8, min_on_demand=1)
    found = prospect(Terms.from_snapshot(driver.kernel.snapshot()), job, 100.0)
    assert found is not None
    assert found.shape.gpus == gpus
    assert found.usd_per_h <= float(usd_per_h)


HOUR_S = 3600.0


def terms_of(*offers, jobs=(), **facts):
    """Beside jobs that run already."""
    driver = Driver(offers, **facts)
    driver.submit(*jobs)
    driver.settle(Price())
    return Terms.from_snapshot(driver.kernel.snapshot())


def rigid(job_id="a", gpus=2, hours=6.0, **facts):
    """On two GPUs half as long as on one."""
    facts = {"gpus": gpus, "min_gpus": gpus, "max_gpus": gpus, "restart_s": 0.0, **facts}
    return a_job(job_id, work=hours * gpus * HOUR_S, **facts)


SPOT = an_offer("s", gpus=1, usd_per_h="1", pool="s", boot_s=900.0)
SURE = an_offer("d", gpus=1, usd_per_h="3", pool="d", market=Market.ON_DEMAND)


def test_a_prospect_is_a_shape_its_hours_with_the_start_and_its_rent_until_then():
    """Two GPUs for 6 hours and a quarter of one to boot, at 2 USD an hour."""
    found = prospect(terms_of(SPOT), rigid(), 1.0)
    assert found == Prospect(shape=Shape("s", 2), hours=6.25, usd=12.5, usd_per_h=2.0, waits=False)


def test_what_an_hour_is_worth_decides_between_cheap_and_quick():
    """6.25 hours for 12.5 USD, or 6 for 36: a quarter of an hour is worth 23.5 USD from 94 USD an hour on."""
    terms = terms_of(SPOT, SURE)
    assert prospect(terms, rigid(), 93.0).shape.pool == "s"
    assert prospect(terms, rigid(), 95.0).shape.pool == "d"
    assert prospect(terms, rigid(), 1.0, on_demand=True).shape.pool == "d"
    assert prospect(terms_of(SPOT), rigid(), 1.0, on_demand=True) is None


def test_where_others_have_it_all_it_waits_for_what_it_would_have_alone():
    others, limits = [rigid("other", gpus=3)], {"s": Limit(max_nodes=4)}
    assert prospect(terms_of(SPOT, limits=limits), rigid(), 1.0).waits is False
    found = prospect(terms_of(SPOT, jobs=others, limits=limits), rigid(), 1.0)
    assert (found.shape, found.waits) == (Shape("s", 2), True)
    found = prospect(terms_of(SPOT, jobs=others, limits=limits), rigid(gpus=1), 1.0)
    assert (found.shape, found.waits) == (Shape("s", 1), False)
    assert prospect(terms_of(SPOT, limits=limits), rigid(gpus=5), 1.0) is None


def test_it_is_within_its_own_purse():
    terms = terms_of(SPOT, SURE)
    assert prospect(terms, rigid(purse_left_usd=36.0), 1e6).shape.pool == "d"
    assert prospect(terms, rigid(purse_left_usd=35.0), 1e6).shape.pool == "s"


@pytest.mark.parametrize(("usd_per_h", "runs"), [("2", True), ("1.99", False)])
def test_under_a_limit_by_the_hour_it_costs_no_more(usd_per_h, runs):
    terms = terms_of(SPOT, budget=Budget(burn=Usd.from_usd_per_h(usd_per_h)))
    assert (prospect(terms, rigid(), 1.0) is not None) is runs


def test_an_hour_of_a_job_counts_as_often_as_it_weighs():
    terms = terms_of(SPOT, budget=Budget(average=Usd.from_usd_per_h("5")))
    once, thrice = (hour_usd_of(Price(), terms, rigid(weight=weight)) for weight in (1.0, 3.0))
    assert once > 0.0
    assert thrice == pytest.approx(3.0 * once)


def test_without_a_budget_an_hour_is_worth_what_the_policy_says_or_the_least_on_demand():
    """Two GPUs for 3 USD; who is in a hurry values it beyond all rents."""
    terms = terms_of(SPOT, SURE)
    assert hour_usd_of(Price(hour_usd=7.0), terms, rigid(weight=2.0)) == 14.0
    assert hour_usd_of(Price(), terms, rigid(weight=2.0)) == 12.0
    assert hour_usd_of(Price(), terms, rigid(hurry=True)) > 1e5
