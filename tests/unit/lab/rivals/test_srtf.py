"""Shortest remaining time first."""

from __future__ import annotations

from hypothesis import given

from sublet.domain.budget import Limit
from sublet.domain.events import JobFinished
from sublet.domain.shape import Shape
from sublet.testing.driver import Driver
from sublet.testing.strategies import jobs
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.srtf import Srtf


def town(*jobs):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=1)})
    driver.submit(*jobs)
    driver.settle(Srtf())
    return driver


def running(driver):
    return sorted(driver.kernel.active)


def test_the_shortest_job_runs_whatever_the_order_of_arrival():
    assert running(town(a_job("long", work=900.0, gpus=4), a_job("short", work=8.0, gpus=4))) == ["short"]


def test_a_shorter_job_preempts_and_the_longer_one_comes_back_where_it_was():
    driver = town(a_job("long", work=900.0, gpus=4))
    driver.now_s = 50.0
    driver.submit(a_job("short", work=100.0, gpus=4))
    driver.settle(Srtf())
    assert running(driver) == ["short"]
    assert driver.kernel.jobs["long"].done == 200.0  # four GPUs, 50 seconds
    driver.tell(JobFinished(75.0, "short"))
    driver.settle(Srtf())
    assert running(driver) == ["long"]
    assert driver.kernel.jobs["long"].done == 200.0


def test_what_is_left_counts_and_not_what_it_was():
    driver = town(a_job("nearly", work=900.0, gpus=4))
    driver.now_s = 220.0  # 880 done, 5 seconds left
    driver.submit(a_job("short", work=40.0, gpus=4))  # ten seconds
    driver.settle(Srtf())
    assert running(driver) == ["nearly"]


def test_a_small_job_fills_the_gap_that_a_misfit_leaves():
    driver = town(a_job("a", work=3.0, gpus=3), a_job("b", work=60.0, gpus=2), a_job("c", work=900.0, gpus=1))
    assert running(driver) == ["a", "c"]


@given(jobs(most=6))
def test_nobody_waits_while_a_longer_job_of_its_size_or_more_runs(drawn):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=3)})
    driver.submit(*drawn)
    driver.settle(Srtf())

    def seconds(state):
        return state.job.work / state.job.speed.rate("T4", (state.job.gpus,), 0.0)

    waiting = [state for job_id, state in driver.kernel.jobs.items() if job_id not in driver.kernel.active]
    for state in waiting:
        width = min(state.job.gpus, 12)
        behind = [s for s in driver.kernel.active.values() if (seconds(s), s.seq) > (seconds(state), state.seq)]
        assert sum(s.gpus for s in behind) + 12 - sum(s.gpus for s in driver.kernel.active.values()) < width


def test_the_size_is_the_one_asked_for():
    driver = town(a_job("a", gpus=3, max_gpus=4))
    assert driver.kernel.active["a"].shape == Shape("p", 3)
