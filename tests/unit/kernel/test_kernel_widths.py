"""A job runs as wide as its owner lets it: a plan that says otherwise is refused, unless it could not know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.actions import MakePlan, RefusePlan, StartJob
from sublet.domain.events import JobChanged, PlanMade
from sublet.domain.plan import Plan
from sublet.domain.shape import MOST_BATCH, Shape
from sublet.errors import InvalidValue
from sublet.testing.values import a_job

JOB = a_job("a", gpus=3, min_gpus=2, max_gpus=4)


def p(gpus):
    return Shape("p", gpus)


@pytest.mark.parametrize("gpus", [1, 5])
def test_a_fresh_plan_outside_of_a_jobs_widths_is_refused_whole(town, gpus):
    town.submit(JOB, a_job("b"))
    refusal = town.expect_refusal(Plan(shapes={"b": p(1), "a": p(gpus)}))
    assert refusal == RefusePlan("shapes[a].gpus", gpus, "a worker count of the job, from 2 to 4")
    assert isinstance(refusal.error(0.0), InvalidValue)
    assert (town.kernel.active, town.kernel.tenancy.promises.promised) == ({}, {"p": 0})


@pytest.mark.parametrize("gpus", [2, 4])
def test_the_least_and_the_most_of_a_jobs_widths_are_carried_out(town, gpus):
    town.submit(JOB)
    assert town.plan(Plan(shapes={"a": p(gpus)})) == [StartJob("a", 1, p(gpus), (("n1", gpus),))]


def test_a_stale_plan_that_did_not_see_new_widths_is_not_refused_and_the_job_waits_for_the_next(town):
    town.submit(JOB, a_job("b"))
    seen = town.kernel.seen
    town.tell(JobChanged(1.0, replace(JOB, gpus=2, max_gpus=2)))
    orders = town.tell(PlanMade(2.0, Plan(shapes={"a": p(4), "b": p(1)}), seen))
    assert orders == [StartJob("b", 1, p(1), (("n1", 1),)), MakePlan()]
    assert "a" in town.kernel.waiting


def test_a_job_that_is_wider_than_it_may_be_by_now_keeps_its_shape_until_a_plan_changes_it(town):
    town.submit(JOB)
    town.plan(Plan(shapes={"a": p(4)}))
    town.answer(town.open[-1])
    town.tell(JobChanged(1.0, replace(JOB, max_gpus=3)))
    assert town.plan(Plan(shapes={"a": p(4)})) == []  # what it has is no change
    town.plan(Plan(shapes={"a": p(3)}))
    assert town.kernel.active["a"].shape == p(3)


def test_widths_of_a_job_that_is_paused_are_nobodys_fault(town):
    town.submit(JOB)
    town.tell(JobChanged(1.0, replace(JOB, paused=True)))
    assert town.plan(Plan(shapes={"a": p(5)})) == []


def test_a_batch_has_an_end():
    assert Shape("p", 1, batch=MOST_BATCH).batch == MOST_BATCH
    with pytest.raises(InvalidValue, match="batch"):
        Shape("p", 1, batch=MOST_BATCH + 1)
