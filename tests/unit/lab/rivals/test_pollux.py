"""Goodput, shared fairly, and moves that must pay for their pause."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import JobFinished
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.errors import InvalidValue
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.planning.widths import rate_at, useful_widths
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.fitness import WAITING_SPEEDUP, by_age, by_time_left, fittest_widths, widest_guess
from sublet_lab.rivals.pollux import Pollux
from tests.rigs.sizes import examples


def town(*jobs, nodes=2, size=4, policy=Pollux()):  # noqa: B008 - frozen
    limits = {"o": Limit(min_nodes=nodes, max_nodes=nodes)}
    driver = Driver([an_offer("o", gpus=size, pool="p")], limits=limits)
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, high=8, speed=None, **facts):
    return a_job(job_id, gpus=1, max_gpus=high, speed=speed or Linear(), **facts)


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def running(*, gpus, age_s=600.0, pause_s=30.0, work=1e6, stints=()):
    job = a_job("a", gpus=gpus, max_gpus=64, restart_s=pause_s, work=work)
    return JobState(
        job=job,
        seq=0,
        phase=Phase.RUNNING,
        shape=Shape("p", gpus),
        gpu="T4",
        gpus=gpus,
        spread=(gpus,),
        as_of_s=age_s / 2,
        stints=stints,
    )


def test_equals_share_equally():
    assert sizes(town(elastic("a"), elastic("b"))) == {"a": 4, "b": 4}


def test_gpus_go_where_they_help():
    jobs = elastic("serial", speed=Amdahl(parallel=0.5)), elastic("parallel")
    assert sizes(town(*jobs, nodes=1)) == {"serial": 1, "parallel": 3}


def test_everyone_runs_before_anyone_grows():
    driver = town(*(elastic(f"j{at}", work=10.0**at) for at in range(5)), nodes=1)
    assert sorted(sizes(driver).values()) == [1, 1, 1, 1]


def test_a_stranger_gets_its_share_of_those_who_are_there():
    driver = town(elastic("a", work=1e6))
    assert sizes(driver) == {"a": 8}
    driver.submit(elastic("b"))
    driver.settle(Pollux())
    assert sizes(driver) == {"a": 4, "b": 4}


def test_whoever_is_about_to_end_is_not_moved():
    driver = town(elastic("a", work=30.0, restart_s=600.0), elastic("b", work=1e6, restart_s=600.0))
    driver.tell(JobFinished(0.0, "b"))
    driver.settle(Pollux())
    assert sizes(driver) == {"a": 4}


def test_what_was_never_tried_is_not_jumped_to_if_growth_is_limited():
    driver = town(elastic("a"), policy=Pollux(growth=2.0))
    assert sizes(driver) == {"a": 1}


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.sampled_from([0.3, 0.7, 1.0]), st.integers(1, 3), st.integers(3, 8)), min_size=1, max_size=3),
    st.sampled_from([-0.5, -1.0, -3.0]),
)
def test_no_other_split_is_fitter(kinds, power):
    speeds = [
        a_job(f"j{at}", gpus=high, min_gpus=low, speed=PowerLaw(exponent=p)) for at, (p, low, high) in enumerate(kinds)
    ]
    group = [JobState(job=job, seq=at) for at, job in enumerate(speeds)]
    pool = town().kernel.snapshot().pools["p"]
    fair = -(-min(8, sum(job.max_gpus for job in speeds)) // len(group))

    def cost(state, gpus):
        base = rate_at(state, pool, min(max(fair, state.job.min_gpus), state.job.max_gpus), 0.0)
        speedup = rate_at(state, pool, gpus, 0.0) / base if gpus else 0.0
        return (speedup + WAITING_SPEEDUP) ** power

    def total(widths):
        return sum(cost(state, gpus) for state, gpus in zip(group, widths, strict=True))

    found = fittest_widths(group, pool, 8, 0.0, power=power, growth=float("inf"), discount=by_time_left)
    every = product(*([0, *useful_widths(state.job, 4, 8)] for state in group))
    best = min(total(widths) for widths in every if sum(widths) <= 8)
    assert sum(found) <= 8
    assert total(found) == pytest.approx(best)


def test_a_move_costs_the_old_little_and_the_restless_much():
    young, old = by_age(running(gpus=2), 60.0), by_age(running(gpus=2), 6000.0)
    restless = by_age(running(gpus=2, stints=((0.0, 10.0, 1),) * 10), 600.0)
    assert restless < young < old < 1.0
    assert by_age(running(gpus=2, pause_s=0.0), 60.0) == 1.0


def test_a_move_costs_those_with_little_left_much():
    state = running(gpus=2, work=2000.0)  # begins at 300 s, ends at 1300 s
    assert by_time_left(state, 400.0) == pytest.approx(900.0 / 930.0)
    assert by_time_left(state, 1290.0) == pytest.approx(10.0 / 40.0)


def test_guesses_go_to_a_multiple_of_what_was_tried():
    state = running(gpus=3, stints=((0.0, 10.0, 1), (10.0, 20.0, 5)))
    assert widest_guess(state, 600.0, 2.0) == 10
    assert widest_guess(running(gpus=3), 600.0, 2.0) == 6
    assert widest_guess(running(gpus=3), 300.0, 2.0) == 3  # it has only just begun


@pytest.mark.parametrize("knobs", [{"power": 0.0}, {"power": 1.0}, {"round_s": 0.0}, {"growth": 1.0}])
def test_knobs_that_mean_nothing_are_refused(knobs):
    with pytest.raises(InvalidValue):
        Pollux(**knobs)
