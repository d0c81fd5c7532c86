"""What is told of a decision is what was compared in it."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import TimePrice, ValueOfTime
from sublet.policies.price.decision import Decision
from sublet.policies.price.policy import priced_plan
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

HOUR_USD = 8.0  # at which such a job wants several GPUs


def weighed(offers, *, jobs, **facts):
    """The plan that jobs alike get, and what was weighed for them."""
    driver = Driver(offers, **facts)
    driver.submit(*(a_job(f"j{n}", work=36_000.0, max_gpus=8, speed=Amdahl(parallel=0.9)) for n in range(jobs)))
    terms = Terms.from_snapshot(driver.kernel.snapshot())
    plan = priced_plan(Decision.read(terms, ValueOfTime(TimePrice(HOUR_USD, 0.5)).over, review_s=60.0))
    return plan, plan.weighed


SPOT = an_offer("spot", gpus=1, usd_per_h="1")
ON_DEMAND = an_offer("on-demand", gpus=1, usd_per_h="3", market=Market.ON_DEMAND)


def test_where_there_is_enough_the_least_of_what_was_compared_is_chosen():
    plan, tables = weighed([SPOT, ON_DEMAND], jobs=3)
    assert len(tables) == 3
    for job_id, table in tables.items():
        first, *others = table.rows()
        assert plan.shapes[job_id] == first.shape
        assert all(first.usd <= row.usd for row in others)
        assert {row.shape.pool for row in others} == {SPOT.pool, ON_DEMAND.pool}
        for row in (first, *others):
            assert row.usd == pytest.approx(row.rent_usd + row.time_usd + row.other_usd)
            assert row.rent_usd == pytest.approx(row.hours * row.usd_per_h)
            assert row.time_usd == pytest.approx(row.hours * table.hour_usd)


def test_the_surcharge_of_a_pool_that_is_short_is_told():
    plan, tables = weighed([SPOT], jobs=3, limits={"spot": Limit(max_nodes=7)})
    assert plan.congestion_usd_per_gpu_h[SPOT.pool] > 0
    for table in tables.values():
        rows = table.rows()
        assert all(row.scarce_usd > 0 for row in rows)
        assert [row.usd for row in rows] == sorted(row.usd for row in rows)
        assert all(
            row.usd == pytest.approx(row.rent_usd + row.time_usd + row.scarce_usd + row.other_usd) for row in rows
        )
        assert {row.shape.gpus for row in rows if not row.obtainable} == {8}  # seven nodes may be held
