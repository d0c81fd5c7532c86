"""A job without an end is weighed by the day ahead: it trains, and lets those that end go first."""

from __future__ import annotations

import math

import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import JobFinished
from sublet.domain.money import Money
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.perf.phased import Phased
from sublet.perf.preemption import NO_RECLAIMS
from sublet.perf.speedup import Amdahl
from sublet.planning.menu import AHEAD_H, menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Site
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

HOUR_S = 3600.0
SPEED = Amdahl(parallel=0.9)
FACTS = {"speed": SPEED, "max_gpus": 8, "checkpoint_every_s": 600.0}


def offers(*, mixed, **facts):
    pools = ("m", "m") if mixed else ("s", "d")
    return [
        an_offer("s", gpus=1, usd_per_h="1", pool=pools[0], market=Market.SPOT, hazard_per_h=0.1, **facts),
        an_offer("d", gpus=1, usd_per_h="3", pool=pools[1], market=Market.ON_DEMAND, **facts),
    ]


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("limits", [{}, {"s": Limit(max_nodes=3), "d": Limit(max_nodes=2)}])
@pytest.mark.parametrize(
    "budget", [Budget(), Budget(average=Usd.from_usd_per_h("10")), Budget(purse=Money.from_usd("500"))]
)
def test_a_job_without_an_end_trains_beside_one_that_has_one(mixed, limits, budget):
    driver = Driver(offers(mixed=mixed), limits=limits, budget=budget)
    driver.submit(a_job("endless", work=math.inf, **FACTS), a_job("ends", work=36_000.0, **FACTS))
    driver.settle(Price())
    assert {state.phase for state in driver.kernel.jobs.values()} == {Phase.RUNNING}


@pytest.mark.parametrize("hour_usd", [0.5, 3.0, 20.0])
def test_it_has_the_shape_in_which_its_work_costs_least(hour_usd):
    driver = Driver([an_offer("d", gpus=1, usd_per_h="1", pool="d", market=Market.ON_DEMAND)])
    driver.submit(a_job("endless", work=math.inf, **FACTS))
    driver.settle(Price(hour_usd=hour_usd))
    found = driver.kernel.jobs["endless"].shape.gpus
    assert found == min(range(1, 9), key=lambda gpus: (hour_usd + gpus) / SPEED.rate("T4", (gpus,), 0.0))


def test_where_one_has_to_wait_it_is_the_one_without_an_end_and_it_is_next():
    driver = Driver(offers(mixed=True), limits={"s": Limit(max_nodes=0), "d": Limit(max_nodes=2)})
    facts = {**FACTS, "gpus": 2, "min_gpus": 2, "max_gpus": 2}
    driver.submit(a_job("endless", work=math.inf, **facts), a_job("ends", work=36_000.0, **facts))
    driver.settle(Price())
    assert driver.kernel.jobs["endless"].shape is None
    driver.tell(JobFinished(10 * HOUR_S, "ends"))
    driver.settle(Price())
    assert driver.kernel.jobs["endless"].phase is Phase.RUNNING


@pytest.mark.parametrize("done", [0.0, 50.0, 1e6])
def test_a_day_is_weighed_from_wherever_it_is_also_with_phases_ahead(done):
    phased = Phased(ends=(100.0, 200.0), rates=lambda _, spread: [1.0, sum(spread) ** 0.5])
    job = a_job(work=math.inf, speed=phased, max_gpus=4)
    state = JobState(job=job, seq=0, as_of_s=0.0, held_since_s=0.0, done=done)
    menu = menu_of(job, (Site("p", "T4", 1, NO_RECLAIMS, 0.0, math.inf),))
    options = options_of(menu, state, 0.0, 1e6, (1.0,))  # time is worth more than any rent
    rest_h = max(0.0, 100.0 - done) / HOUR_S  # of the first phase, in which more GPUs are of no use
    day = AHEAD_H * (1.0 if done < 100.0 else 2.0)  # as fast as it can go in this phase
    first = options.hours_C[menu.column[Shape("p", 4)]] - menu.start_C[0]
    assert first == pytest.approx(rest_h + (day - rest_h) / 2.0)


def test_however_long_it_has_trained_it_has_as_much_ahead():
    menu = menu_of(a_job(work=math.inf, **FACTS), (Site("p", "T4", 1, NO_RECLAIMS, 0.0, math.inf),))
    fastest, thriftiest = SPEED.rate("T4", (8,), 0.0), SPEED.rate("T4", (1,), 0.0)
    for done in (0.0, 1e6):
        assert menu.gpu_hours_left(done, math.inf) == pytest.approx(AHEAD_H * fastest / thriftiest)


@pytest.mark.parametrize("average", ["1.5", "4", "6"])
def test_an_average_to_spend_is_kept_where_no_job_has_an_end(average):
    spent = []
    for budget in (Budget(average=Usd.from_usd_per_h(average)), Budget(average=Usd.from_usd_per_h("1000"))):
        driver = Driver([an_offer("d", gpus=1, usd_per_h="0.5", market=Market.ON_DEMAND)], budget=budget)
        driver.submit(*(a_job(f"j{number}", work=math.inf, **FACTS) for number in range(2)))
        driver.settle(Price())
        spent.append(0.5 * sum(state.shape.gpus for state in driver.kernel.jobs.values()))
    assert 0.6 * float(average) <= spent[0] <= float(average)  # widths are whole numbers
    assert spent[1] == 0.5 * 16  # as wide as they can be
