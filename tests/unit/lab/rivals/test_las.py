"""Least attained service in two queues: at the threshold a job gives way."""

from __future__ import annotations

import pytest

from sublet.domain.actions import MakePlan
from sublet.domain.budget import Limit
from sublet.domain.events import JobFinished
from sublet.domain.plan import JobState
from sublet.domain.timers import PlanAgain
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.las import Las, _Demoted
from sublet_lab.rivals.ranking import TOLERANCE_GPU_S

POLICY = Las(threshold_gpu_s=400.0)  # four GPUs for 100 seconds


def town(*jobs, nodes=1):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=nodes)})
    driver.submit(*jobs)
    driver.settle(POLICY)
    return driver


def running(driver):
    return sorted(driver.kernel.active)


def later(driver, now_s):
    driver.now_s = now_s
    driver.submit(a_job(f"wake at {now_s}", gpus=1))
    driver.settle(POLICY)


def test_before_the_threshold_a_job_keeps_its_gpus_and_the_policy_asks_to_be_woken_at_it():
    driver = town(a_job("a", work=1e6, gpus=4), a_job("b", gpus=4))
    assert running(driver) == ["a"]
    assert driver.timers[PlanAgain()] == pytest.approx(100.0)


def test_at_the_threshold_it_gives_way_to_one_that_has_had_less():
    driver = town(a_job("a", work=1e6, gpus=4), a_job("b", gpus=4))
    driver.ring([PlanAgain()])
    assert driver.open == [MakePlan()]
    driver.settle(POLICY)
    assert driver.now_s == pytest.approx(100.0)
    assert running(driver) == ["b"]
    assert driver.kernel.jobs["a"].gpu_s == pytest.approx(400.0)


def test_a_demoted_job_comes_back_when_the_first_queue_is_empty():
    driver = town(a_job("a", work=1e6, gpus=4), a_job("b", gpus=4))
    driver.ring([PlanAgain()])
    driver.settle(POLICY)
    driver.tell(JobFinished(150.0, "b"))
    driver.settle(POLICY)
    assert running(driver) == ["a"]


def test_within_a_queue_whoever_came_first_goes_first():
    driver = town(a_job("a", work=1e6, gpus=4), a_job("b", work=1e6, gpus=4))
    for at_s, expected in ((100.0, ["b"]), (200.0, ["a"])):  # both have had their share then: by arrival again
        driver.ring([PlanAgain()])
        driver.settle(POLICY)
        assert driver.now_s == pytest.approx(at_s)
        assert running(driver) == expected


def test_nobody_is_demoted_before_the_threshold():
    driver = town(a_job("a", work=1e6, gpus=4), a_job("b", gpus=4))
    later(driver, 98.0)
    assert running(driver) == ["a"]


def test_without_anybody_waiting_nobody_needs_to_be_woken():
    assert town(a_job("a", work=1e6, gpus=4)).timers == {}


def test_a_wider_job_reaches_the_threshold_sooner():
    driver = town(a_job("a", work=1e6, gpus=8), a_job("b", gpus=8), nodes=2)
    assert driver.timers[PlanAgain()] == pytest.approx(50.0)


@pytest.mark.parametrize(("gpu_s", "queue"), [(0.0, 0.0), (400.0 - TOLERANCE_GPU_S, 0.0), (400.0, 1.0), (900.0, 1.0)])
def test_who_waits_is_in_the_second_queue_once_it_has_had_its_share(gpu_s, queue):
    assert _Demoted(400.0)(JobState(job=a_job("a"), seq=0, gpu_s=gpu_s)) == queue
