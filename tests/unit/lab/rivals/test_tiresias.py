"""Two queues: a job that has had its share goes to the end of the second one, and stays there in that order."""

from __future__ import annotations

import pytest

from sublet.domain.actions import StartJob
from sublet.domain.budget import Limit
from sublet.domain.events import JobFinished
from sublet.domain.plan import JobState, Packing
from sublet.domain.timers import PlanAgain
from sublet.errors import InvalidValue
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.tiresias import Tiresias, _DemotedAt

POLICY = Tiresias(threshold_gpu_s=400.0, round_s=10.0)  # four GPUs for 100 seconds


def town(*jobs, nodes=1):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(min_nodes=nodes, max_nodes=nodes)})
    driver.submit(*jobs)
    driver.settle(POLICY)
    return driver


def long(job_id, gpus=4):
    return a_job(job_id, work=1e6, gpus=gpus, min_gpus=gpus)


def running(driver):
    return sorted(driver.kernel.active)


def wake(driver):
    driver.ring([PlanAgain()])
    driver.settle(POLICY)


def at(driver, now_s, *jobs):
    driver.now_s = now_s
    driver.submit(*jobs)
    driver.settle(POLICY)


def test_jobs_run_at_the_size_they_asked_for_and_smaller_ones_may_fill_the_gaps():
    driver = town(long("a", 3), long("b", 2), long("c", 1))
    assert {job_id: state.gpus for job_id, state in driver.kernel.active.items()} == {"a": 3, "c": 1}


def test_however_many_do_not_fit_the_one_that_does_is_found():
    driver = town(long("a", 3), *(long(f"wide{at}", 2) for at in range(70)), long("small", 1))
    assert running(driver) == ["a", "small"]


def test_a_job_that_has_had_its_share_gives_way_and_the_policy_is_woken_for_it():
    driver = town(long("a"), long("b"))
    assert running(driver) == ["a"]
    assert driver.timers[PlanAgain()] == pytest.approx(100.0)
    wake(driver)
    assert running(driver) == ["b"]


def test_the_second_queue_is_in_order_of_demotion_not_of_arrival():
    driver = town(long("a"), long("b"))
    wake(driver)  # a is demoted at 100 s, b runs
    wake(driver)  # b is demoted at 200 s: a was there before it
    assert (driver.now_s, running(driver)) == (pytest.approx(200.0), ["a"])
    at(driver, 250.0, long("c"))  # a is sent back, and its place is kept
    assert running(driver) == ["c"]
    wake(driver)
    assert (driver.now_s, running(driver)) == (pytest.approx(350.0), ["a"])


def test_a_late_arrival_that_was_demoted_early_comes_before_an_early_one_that_was_demoted_late():
    driver = town(long("slow", 1), long("fast", 3))  # demoted at 400 s and at 140 s
    at(driver, 450.0, long("new", 1))
    assert running(driver) == ["fast", "new"]


def test_demotions_within_one_round_count_as_one_in_order_of_arrival():
    driver = town(long("a", 5), long("b", 6), nodes=3)  # demoted at 80 and 66.7 s
    at(driver, 80.0, long("c", 12))
    assert running(driver) == ["c"]
    driver.tell(JobFinished(85.0, "c"))
    driver.settle(POLICY)
    ranks = {state.job.id: state.stints for state in driver.kernel.active.values()}
    assert ranks == {"a": ((0.0, 80.0, 5),), "b": ((0.0, 80.0, 6),)}
    at(driver, 90.0, long("d", 6))  # room for one of them: b was first to the second, by the round it was second
    assert running(driver) == ["b", "d"]
    coarse = Tiresias(threshold_gpu_s=400.0, round_s=80.0)
    driver.now_s = 100.0
    driver.submit(long("e", 1))
    driver.settle(coarse)
    assert running(driver) == ["a", "d", "e"]


def test_without_anybody_waiting_nobody_needs_to_be_woken():
    assert town(long("a")).timers == {}


def test_new_jobs_go_where_most_gpus_are_free():
    driver = town(nodes=2)
    assert POLICY.decide(driver.kernel.snapshot()).packing is Packing.EMPTIEST
    places = []
    driver.submit(long("a", 1), long("b", 1), long("c", 5))
    while driver.open:
        order = driver.open[0]
        places += [order.placement] if isinstance(order, StartJob) else []
        driver.answer(order, POLICY)
    assert places == [(("n1", 1),), (("n2", 1),), (("n1", 3), ("n2", 2))]


@pytest.mark.parametrize("knobs", [{"threshold_gpu_s": 0.0}, {"round_s": -1.0}])
def test_knobs_that_cannot_be_are_refused(knobs):
    with pytest.raises(InvalidValue):
        Tiresias(**knobs)


@pytest.mark.parametrize(
    ("threshold_gpu_s", "round_s", "demoted_s"),
    [
        (401.0, 60.0, 0.0),  # it has had 400: still in the first queue
        (300.0, 0.0, 225.0),  # in its second stay: the 200 of the first, and 100 at four a second
        (300.0, 60.0, 240.0),
        (150.0, 0.0, 75.0),  # in its first
        (150.0, 60.0, 120.0),
        (120.0, 60.0, 60.0),  # at the very end of a round
        (200.0, 0.0, 100.0),  # at the very end of its first stay
    ],
)
def test_a_job_is_demoted_when_it_had_had_its_share_at_the_end_of_a_round(threshold_gpu_s, round_s, demoted_s):
    """Two GPUs from 0 to 100 s, and four from 200 to 250 s."""
    stints = ((0.0, 100.0, 2),)
    runs = JobState(job=a_job("a"), seq=0, gpus=4, gpu_s=200.0, held_since_s=200.0, stints=stints)
    demoted = _DemotedAt(threshold_gpu_s, round_s)
    assert demoted.by(runs, 250.0) == pytest.approx(demoted_s)
    waits = JobState(job=a_job("a"), seq=0, gpu_s=400.0, held_since_s=250.0, stints=(*stints, (200.0, 250.0, 4)))
    assert demoted(waits) == pytest.approx(demoted_s)
