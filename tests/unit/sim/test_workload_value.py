"""A workload that exists is valid, and its helpers change only what they say."""

from __future__ import annotations

import pytest

from sublet.domain.job import Job
from sublet.errors import BadInput, InvalidValue
from sublet.perf.speedup import Linear
from sublet.sim.workloads import Workload

SPEED = Linear()


def job(name, submit_s, **fields):
    return Job(id=name, submit_s=submit_s, work=3600.0, speed=SPEED, **fields)


def workload(*jobs):
    return Workload(name="test", jobs=jobs)


def test_an_empty_workload_is_refused():
    with pytest.raises(BadInput, match="no job"):
        workload()


def test_an_id_used_twice_is_refused_by_name():
    with pytest.raises(BadInput, match="'b' is used twice"):
        workload(job("a", 0.0), job("b", 1.0), job("b", 2.0))


def test_jobs_are_sorted_by_arrival_then_id():
    ids = [each.id for each in workload(job("c", 1.0), job("b", 1.0), job("a", 2.0)).jobs]
    assert ids == ["b", "c", "a"]


def test_the_span_runs_from_first_to_last_arrival():
    assert workload(job("a", 5.0), job("b", 12.0)).span_s == 7.0


def test_gpu_hours_are_those_of_the_request():
    assert workload(job("a", 0.0, gpus=4), job("b", 0.0)).gpu_hours() == pytest.approx(2.0)


def test_the_head_is_the_first_arrivals_and_says_so():
    whole = workload(job("a", 0.0), job("b", 1.0), job("c", 2.0))
    assert [each.id for each in whole.head(2).jobs] == ["a", "b"]
    assert whole.head(2).notes == ("only the first 2 of 3 jobs",)
    assert whole.head(3) is whole
    with pytest.raises(InvalidValue):
        whole.head(0)


def test_twice_the_load_halves_arrival_times_and_keeps_the_slack_of_deadlines():
    dense = workload(job("a", 10.0, deadline_s=110.0), job("b", 30.0)).scaled(2.0)
    assert [each.submit_s for each in dense.jobs] == [5.0, 15.0]
    assert dense.jobs[0].deadline_s == 105.0
    assert [each.work for each in dense.jobs] == [3600.0, 3600.0]
    assert dense.notes == ("arrival times divided by 2",)


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_that_cannot_be_is_refused(load):
    with pytest.raises(InvalidValue):
        workload(job("a", 0.0)).scaled(load)


def test_the_clock_can_start_at_the_first_arrival():
    early = workload(job("a", 10.0, deadline_s=20.0), job("b", 30.0)).from_zero()
    assert [each.submit_s for each in early.jobs] == [0.0, 20.0]
    assert early.jobs[0].deadline_s == 10.0
    assert early.from_zero() is early
