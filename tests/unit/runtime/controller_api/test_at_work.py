"""How far jobs have come, as a cloud that strikes by that is told."""

from __future__ import annotations

from types import SimpleNamespace

from sublet.domain.plan import Phase
from sublet.runtime.controller.memory import JobsAtWork


def record(share, ended_s=None):
    return SimpleNamespace(share=share, ended_s=ended_s)


def at_work(*records, phases=(), placement=None):
    jobs = {job_id: SimpleNamespace(phase=phase) for job_id, phase in phases}
    kernel = SimpleNamespace(jobs=jobs, tenancy=SimpleNamespace(placement=placement or {}))
    return JobsAtWork(SimpleNamespace(records=dict(enumerate(records))), lambda: kernel)


def test_each_job_counts_alike_and_one_that_has_ended_as_done():
    assert at_work(record(0.5), record(0.1)).share() == 0.3
    assert at_work(record(0.5), record(0.2, ended_s=9.0)).share() == 0.75


def test_before_the_first_job_nothing_is_done():
    assert at_work().share() == 0.0


def test_nodes_are_those_on_which_jobs_train_and_not_those_where_they_start_or_stand():
    phases = [("a", Phase.RUNNING), ("b", Phase.STARTING), ("c", Phase.RUNNING), ("d", Phase.BROKEN)]
    placement = {"a": (("n1", 1), ("n2", 2)), "b": (("n3", 1),), "d": (("n4", 1),)}
    assert at_work(phases=phases, placement=placement).nodes() == {"n1", "n2"}
