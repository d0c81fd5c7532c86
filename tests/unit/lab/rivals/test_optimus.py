"""One GPU each, then one at a time to whom it saves most time."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import MakePlan, StartJob
from sublet.domain.budget import Limit
from sublet.domain.timers import PlanAgain
from sublet.errors import InvalidValue
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.optimus import Optimus
from sublet_lab.rivals.vacate_first import VacateFirst
from tests.rigs.sizes import examples


def town(*jobs, nodes=2, size=4, policy=Optimus()):  # noqa: B008 - frozen
    limits = {"o": Limit(min_nodes=nodes, max_nodes=nodes)}
    driver = Driver([an_offer("o", gpus=size, pool="p")], limits=limits)
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, high=8, speed=None, **facts):
    return a_job(job_id, gpus=1, max_gpus=high, speed=speed or Linear(), **facts)


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def test_everyone_gets_one_gpu_in_order_of_arrival_before_anyone_gets_two():
    driver = town(*(elastic(f"j{at}", work=10.0**at) for at in range(6)), nodes=1)
    assert sizes(driver) == dict.fromkeys(["j0", "j1", "j2", "j3"], 1)


def test_the_next_gpu_goes_where_it_saves_most_time():
    driver = town(elastic("short", work=10.0), elastic("long", work=1000.0))
    assert sizes(driver) == {"short": 1, "long": 7}


def test_equals_are_served_in_order_of_arrival():
    assert sizes(town(elastic("a"), elastic("b"), nodes=1, size=5)) == {"a": 3, "b": 2}


def test_a_job_whose_end_is_on_its_way_keeps_what_it_has():
    driver = town(elastic("a", work=80.0), nodes=1)
    assert sizes(driver) == {"a": 4}
    driver.now_s = 19.0  # it has a second to go: one GPU does for the newcomer, and then the gain is weighed
    driver.submit(elastic("b", work=10.0))
    assert Optimus().decide(driver.kernel.snapshot()).shapes["b"].gpus > 0
    driver.now_s = 100.0
    driver.submit(elastic("c", work=10.0))
    plan = Optimus().decide(driver.kernel.snapshot())
    assert "a" not in plan.shapes
    assert not any(shape for shape in plan.shapes.values())


def test_nobody_grows_beyond_what_helps_or_what_it_may_have():
    jobs = elastic("serial", speed=Amdahl(parallel=0.0)), elastic("narrow", high=2)
    assert sizes(town(*jobs)) == {"serial": 1, "narrow": 2}


def test_what_is_left_is_looked_at_again_after_a_round():
    driver = town(elastic("a", work=1e6), elastic("b", work=5e5))
    assert driver.timers[PlanAgain()] == 60.0
    assert town().timers == {}


def test_another_expectation_of_what_is_left_makes_other_widths():
    def upside_down(job, pool, done):
        return iter([1000.0 / job.work / gpus for gpus in range(1, 9)])

    jobs = elastic("short", work=10.0), elastic("long", work=1000.0)
    assert sizes(town(*jobs, policy=Optimus(left_s=upside_down))) == {"short": 7, "long": 1}


def test_placed_anew_the_smallest_go_first_and_to_the_emptiest_nodes():
    policy = VacateFirst(Optimus())
    driver = town(elastic("big", work=1000.0), policy=policy)
    assert sizes(driver) == {"big": 8}
    driver.now_s = 60.0
    places = {}
    driver.submit(elastic("small", work=10.0))
    while driver.open:
        others = [order for order in driver.open if not isinstance(order, MakePlan)]
        order = others[0] if others else driver.open[0]
        if isinstance(order, StartJob):
            places[order.job_id] = order.placement
        driver.answer(order, policy)
    assert places == {"small": (("n1", 1),), "big": (("n2", 4), ("n1", 3))}


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from([1.0, 0.8, 0.4])), min_size=1, max_size=3),
    st.integers(3, 7),
)
def test_with_diminishing_returns_the_total_time_left_is_the_least_possible(facts, gpus):
    jobs = [elastic(f"j{at}", gpus, PowerLaw(exponent=p), work=float(w)) for at, (w, p) in enumerate(facts)]
    given_to = sizes(town(*jobs, nodes=1, size=gpus))

    def left_s(widths):
        return sum(job.speed.seconds("T4", (n,), 0.0, job.work) for job, n in zip(jobs, widths, strict=True))

    every = [w for w in product(range(1, gpus + 1), repeat=len(jobs)) if sum(w) <= gpus]
    assert left_s([given_to[job.id] for job in jobs]) == pytest.approx(min(map(left_s, every)))


def test_a_round_of_no_time_is_refused():
    with pytest.raises(InvalidValue):
        Optimus(round_s=0.0)
