"""Who is filled first by the published system, what is left for the others, and when it looks again."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.demand import Demand, kind_of
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.kernel.kernel import Kernel
from sublet.perf.phased import Phased
from sublet.perf.speedup import Linear, PowerLaw
from sublet.planning.menu import menu_of
from sublet.planning.terms import Terms
from sublet.policies.boa.policy import Boa, _App, _glued, boa_widths
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

LAST = "those before it have taken all GPUs"


def town(*jobs, gpus=8, policy=Boa()):  # noqa: B008 - frozen
    """Nothing is forecast, so that everybody wants what it asked for."""
    driver = Driver([an_offer("o", gpus=1, pool="p")], limits={"o": Limit(max_nodes=gpus)})
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, gpus, least=1):
    return a_job(job_id, work=1e6, gpus=gpus, min_gpus=least, max_gpus=8)


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def changed(driver, policy=Boa()):  # noqa: B008 - frozen
    """What the plan changes, in GPUs."""
    plan = policy.decide(driver.kernel.snapshot())
    return {job_id: shape.gpus if shape else 0 for job_id, shape in plan.shapes.items()}, plan


def test_all_are_filled_in_order_of_arrival_the_last_in_part_if_it_can_run_so():
    assert sizes(town(elastic("a", 3), elastic("b", 3), elastic("c", 3), elastic("d", 1))) == {"a": 3, "b": 3, "c": 2}
    assert sizes(town(elastic("a", 3), elastic("b", 3), elastic("c", 3, least=3), elastic("d", 2))) == {
        "a": 3,
        "b": 3,
        "d": 2,
    }
    assert sizes(town(elastic("a", 3), elastic("b", 3), elastic("c", 3, least=2))) == {"a": 3, "b": 3, "c": 2}


def test_when_supply_falls_the_last_are_narrower_or_wait_and_are_told_so():
    driver = town(elastic("a", 3), elastic("b", 3), elastic("c", 2))
    driver.tell(AvailabilityChanged(1.0, "o", 5))
    found, plan = changed(driver)
    assert found == {"b": 0}  # the last has its width, which leaves nothing
    assert plan.reasons == {"b": LAST}
    driver.tell(AvailabilityChanged(2.0, "o", 4))
    found, plan = changed(driver)
    assert found == {"b": 1, "c": 0}
    assert plan.reasons == {"c": LAST}


def test_who_has_its_width_keeps_it_before_those_who_want_another():
    """The first has grown out of its width, the second has what it wants: of eight that leaves four, not six."""
    later = Phased(ends=(10.0, 1e6), rates=lambda gpu, spread: (1.0, float(sum(spread))))
    first = a_job("first", work=1e6, gpus=2, max_gpus=8, speed=later, model="m")
    second = elastic("second", 4)
    budget = Budget(average=Usd.from_usd_per_h("1000"))
    offers = [an_offer("o", gpus=1, pool="p", usd_per_h="1", market=Market.ON_DEMAND)]
    driver = Driver(offers, limits={"o": Limit(max_nodes=8)}, budget=budget)
    driver.kernel = Kernel(
        offers, limits={"o": Limit(max_nodes=8)}, budget=budget, expected=Demand.from_jobs([first], 1e3)
    )
    driver.submit(first, second)
    driver.settle(Boa())
    before = sizes(driver)
    assert before["second"] == 4
    assert before["first"] < 4
    snapshot = driver.kernel.snapshot()
    grown = replace(snapshot.active["first"], done=20.0)
    plan = Boa().decide(replace(snapshot, active={**snapshot.active, "first": grown}))
    assert {job_id: shape.gpus for job_id, shape in plan.shapes.items()} == {"first": 4}


def test_who_cannot_run_on_the_kind_that_it_knows_waits():
    offers = [
        an_offer("t", gpus=1, usd_per_h="1", pool="t", gpu="T4", market=Market.ON_DEMAND),
        an_offer("a", gpus=1, usd_per_h="4", pool="a", gpu="A100", market=Market.ON_DEMAND),
    ]
    driver = Driver(offers, limits={"t": Limit(max_nodes=4), "a": Limit(max_nodes=4)})
    driver.submit(
        a_job("one", speed=Linear(kinds={"T4": 1.0})),
        a_job("other", speed=Linear(kinds={"A100": 1.0})),
        a_job("both", speed=Linear(kinds={"T4": 1.0, "A100": 2.0})),
    )
    driver.settle(Boa())
    assert sizes(driver) == {"one": 1, "both": 1}  # as many are stuck on either: the cheaper kind


def test_the_kind_on_which_the_fewest_are_stuck_is_the_one_that_it_knows_whatever_it_costs():
    offers = [
        an_offer("t", gpus=1, usd_per_h="1", pool="t", gpu="T4", market=Market.ON_DEMAND),
        an_offer("a", gpus=1, usd_per_h="4", pool="a", gpu="A100", market=Market.ON_DEMAND),
    ]
    driver = Driver(offers, limits={"t": Limit(max_nodes=4), "a": Limit(max_nodes=4)})
    driver.submit(a_job("one", speed=Linear()), a_job("other", speed=Linear(kinds={"A100": 1.0})))
    driver.settle(Boa())
    assert {state.shape.pool for state in driver.kernel.active.values()} == {"a"}
    assert sizes(driver) == {"one": 1, "other": 1}


def test_exact_widths_are_those_of_theory_of_the_phase_that_a_job_is_in():
    """A root, one job of an hour an hour, for 3 USD: nine GPUs for a third of an hour. Nothing scales at first."""
    offers = [an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)]
    budget, root = Budget(average=Usd.from_usd_per_h("3")), PowerLaw(exponent=0.5)
    two = Phased(ends=(10.0, 3600.0), rates=lambda gpu, spread: (1.0, sum(spread) ** 0.5))
    for speed, gpus in ((root, 9), (two, 1)):
        job = a_job("a", work=3600.0, speed=speed, gpus=2, max_gpus=30)
        driver = Driver(offers, budget=budget)
        driver.kernel = Kernel(offers, budget=budget, expected=Demand.from_jobs([job], 1.0))
        driver.submit(job)
        driver.settle(Boa(exact=True))
        assert sizes(driver) == {"a": gpus}


@pytest.mark.parametrize(("now_s", "again_s"), [(0.0, 60.0), (59.0, 60.0), (60.0, 120.0), (130.0, 180.0)])
def test_it_looks_again_at_every_minute_while_somebody_is_there(now_s, again_s):
    driver = town(elastic("a", 3))
    assert Boa().decide(replace(driver.kernel.snapshot(), now_s=now_s)).ask_again_s == again_s
    assert Boa(round_s=10.0).decide(replace(driver.kernel.snapshot(), now_s=5.0)).ask_again_s == 10.0
    assert Boa().decide(town().kernel.snapshot()).ask_again_s is None


@pytest.mark.parametrize("usd_per_h", [1.5, 2.0, 4.0, 9.0])
def test_of_all_lengths_of_blocks_that_are_drawn_the_best_is_taken(usd_per_h):
    """Thirty draws of one to three epochs: all lengths come up, of one application and of two together."""
    sites = Terms.from_snapshot(
        Kernel([an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)]).snapshot()
    ).sites
    jobs, apps = [], []
    for name, epochs in (("long", 25), ("short", 12)):
        exponents = [0.1 + 0.8 * ((7 * at) % epochs) / epochs for at in range(epochs)]
        ends = tuple(360.0 * (1 + at) for at in range(epochs))
        speed = Phased(ends=ends, rates=lambda gpu, spread, exponents=exponents: [sum(spread) ** x for x in exponents])
        jobs.append(a_job(name, work=ends[-1], speed=speed, gpus=1, max_gpus=8, restart_s=20.0, model=name))
        menu = menu_of(jobs[-1], sites)
        apps.append(_App(menu=menu, hours_EC=menu.hours(ends[-1]), per_h=0.5))
    found = boa_widths(Demand.from_jobs(jobs, 2.0), sites, 1.0, usd_per_h, 0)
    every = [_glued(apps, lengths, 1.0, usd_per_h) for lengths in product((1, 2, 3), (1, 2))]
    plans = [each for each in every if each is not None]
    if not plans:
        assert found is None
        return
    best = min(each[0] for each in plans)
    columns = [np.searchsorted(app.menu.gpus_C, found[kind_of(job)]) for app, job in zip(apps, jobs, strict=True)]
    hours = sum(app.per_h * app.spend_and_time(column, 1.0)[1] for app, column in zip(apps, columns, strict=True))
    assert hours == pytest.approx(best)
