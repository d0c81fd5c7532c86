"""What a plan of `price` says beside the shapes: when it wants to be asked again, and why each has what it has."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.shape import Shape
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear
from sublet.policies.fifo import Fifo
from sublet.policies.price.policy import Price, _reason, in_a_hurry
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

HOUR_S = 3600.0
SPOT = an_offer("s", gpus=1, usd_per_h="2", pool="s")


def job(job_id="a", hours=3.0, gpus=2, **facts):
    facts = {"gpus": gpus, "min_gpus": gpus, "max_gpus": gpus, "speed": Linear(), **facts}
    return a_job(job_id, work=hours * gpus * HOUR_S, **facts)


def asked(*jobs, now_s=0.0, policy=None, offers=(SPOT,), runs=False, **facts):
    driver = Driver(offers, **facts)
    driver.submit(*jobs)
    if runs:
        driver.settle(policy or Price())
    return (policy or Price()).decide(replace(driver.kernel.snapshot(), now_s=now_s))


# ---------------------------------------------------------------------- when it wants to be asked again


@pytest.mark.parametrize(("now_s", "again_s"), [(0.0, 600.0), (599.0, 600.0), (600.0, 1200.0), (650.0, 1200.0)])
def test_jobs_without_phases_are_looked_at_every_ten_minutes(now_s, again_s):
    assert asked(job(), now_s=now_s).ask_again_s == again_s
    assert asked(job(), now_s=now_s, runs=True).ask_again_s == again_s


def test_jobs_with_phases_that_run_are_looked_at_every_minute():
    phases = Phased(ends=(HOUR_S, 9 * HOUR_S), rates=lambda gpu, spread: (1.0, 2.0))
    phased = a_job("p", work=9 * HOUR_S, gpus=1, max_gpus=1, speed=phases)
    assert asked(phased, job(), now_s=30.0, runs=True).ask_again_s == 60.0
    assert asked(phased, job(), now_s=30.0).ask_again_s == 600.0  # it waits
    assert asked(phased, now_s=45.0, policy=Price(review_s=20.0), runs=True).ask_again_s == 60.0


def test_without_a_job_nobody_is_asked():
    assert asked().ask_again_s is None


# ---------------------------------------------------------------------- why


def test_the_reason_tells_what_the_shape_takes_and_costs():
    """Three hours of two GPUs at 2 USD each."""
    assert asked(job()).reasons == {"a": "2 x s: 3.00 h, USD 12.00"}


def test_where_only_limits_speak_against_speed_it_says_so():
    quickest = "2 x s: 3.00 h, USD 12.00, fastest within the limits"
    assert asked(job(), policy=in_a_hurry(Price())).reasons == {"a": quickest}
    assert asked(job(hurry=True)).reasons == {"a": quickest}
    assert in_a_hurry(Price(review_s=5.0)) == Price(review_s=5.0, hour_usd=math.inf)
    fifo = Fifo()
    assert in_a_hurry(fifo) is fifo


def test_of_a_job_without_an_end_a_day_is_told():
    endless = replace(job(), work=math.inf)
    told = "2 x s: 24.00 h, USD 96.00, for the day ahead (it has no end)"
    assert asked(endless).reasons == {"a": told}


def test_the_next_best_is_told_where_costs_decide():
    """Six hours of one GPU, or 6 / 1.8 of two (Amdahl at 8 / 9), at 2 USD each and as much an hour."""
    elastic = job(gpus=1, hours=6.0, max_gpus=2, speed=Amdahl(parallel=8.0 / 9.0))
    told = asked(elastic, policy=Price(hour_usd=2.0)).reasons
    assert told == {"a": "2 x s: 3.33 h, USD 13.33. Next best: 1 x s, 6.00 h, USD 12.00"}


def test_what_it_has_already_needs_no_reason():
    assert asked(job(), runs=True).reasons == {}


# ---------------------------------------------------------------------- prices


def test_where_a_budget_rules_the_value_of_time_is_told_and_else_each_job_has_its_own():
    ruled = asked(job(), budget=Budget(average=Usd.from_usd_per_h("10")))
    assert ruled.value_of_time_usd_per_h is not None
    assert ruled.value_of_time_usd_per_h > 0.0
    assert asked(job()).value_of_time_usd_per_h is None


def test_a_pool_with_enough_has_no_surcharge():
    assert asked(job(), limits={"s": Limit(max_nodes=99)}).congestion_usd_per_gpu_h == {}


def test_on_a_cluster_that_is_paid_for_all_is_given_out():
    owned = an_offer("o", gpus=4, usd_per_h="5", pool="o", market=Market.ON_DEMAND)
    facts = {"offers": (owned,), "limits": {"o": Limit(min_nodes=1, max_nodes=1)}}
    plan = asked(job("a", gpus=1, hours=4.0, max_gpus=4), **facts)
    assert plan.shapes["a"].gpus == 4
    assert "USD 0.00" in plan.reasons["a"]  # what is owned is free
    two = asked(job("a", gpus=1, max_gpus=4), job("b", gpus=1, max_gpus=4), **facts)
    assert sum(shape.gpus for shape in two.shapes.values()) == 4


@pytest.mark.parametrize(("rent", "pool", "gpus"), [("0.01", "r", 8), ("1000", "o", 2)])
def test_beside_what_is_owned_it_rents_what_is_worth_its_rent_alone(rent, pool, gpus):
    """Two GPUs that are paid for anyway, and eight that are not: to leave those idle saves money."""
    offers = (
        an_offer("o", gpus=1, usd_per_h="1", pool="o", market=Market.ON_DEMAND),
        an_offer("r", gpus=1, usd_per_h=rent, pool="r", market=Market.ON_DEMAND),
    )
    limits = {"o": Limit(min_nodes=2, max_nodes=2), "r": Limit(max_nodes=8)}
    elastic = job("a", gpus=1, hours=4.0, max_gpus=8, speed=Amdahl(parallel=0.99))
    plan = asked(elastic, offers=offers, limits=limits, policy=Price(hour_usd=1.0))
    assert (plan.shapes["a"].pool, plan.shapes["a"].gpus) == (pool, gpus)


@pytest.mark.parametrize(
    ("gain_usd", "hour_usd", "gain"),
    [(0.0, 4.0, None), (2.0, 4.0, "USD 2.00"), (2e9, 1e9, "2.00 h")],
)
def test_of_a_shape_that_is_tried_to_learn_it_says_what_may_be_gained_in_money_or_in_a_hurry_in_time(
    gain_usd, hour_usd, gain
):
    told = "2 x s: 3.00 h, USD 12.00"
    if gain:
        told = f"tried to learn: {told}, may be off by 25 %. Expected gain: {gain}"
    elif hour_usd > 10_000.0:
        told += ", fastest within the limits"
    shape = Shape("s", 2)
    menu = SimpleNamespace(shapes=[shape], doubt_C=np.array([0.25]), rate_EC=np.ones((1, 1)))
    jobs = SimpleNamespace(states=[SimpleNamespace(job=job(), shape=None)])
    table = SimpleNamespace(
        menus=[menu], value_J=np.array([hour_usd]), hours_JC=np.array([[3.0]]), rent_JC=np.array([[4.0]]),
        cost_JC=np.array([[12.0]]), trials={0: np.array([gain_usd])},
    )  # fmt: skip
    decision = SimpleNamespace(rented=True)
    assert _reason(decision, SimpleNamespace(jobs=jobs, table=table), 0, 0) == told
