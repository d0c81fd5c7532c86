"""When the batches are looked at anew."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from sublet.domain.budget import Limit
from sublet.domain.plan import Phase
from sublet.policies.elastic_batch.policy import ElasticBatch, due
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

EVERY_S = 600.0


def is_due(*phases, room=0, woken=False, now_s=700.0):
    active = {f"j{at}": SimpleNamespace(phase=phase) for at, phase in enumerate(phases)}
    snapshot = SimpleNamespace(active=active, woken=woken, now_s=now_s)
    return due(SimpleNamespace(room={"p": 3, "q": room}, snapshot=snapshot), EVERY_S)


def test_between_two_times_it_is_not_while_all_goes_well():
    assert not is_due(Phase.RUNNING)
    assert not is_due(Phase.STARTING, Phase.RUNNING)


def test_it_is_at_once_where_a_job_broke_nothing_runs_or_more_is_promised_than_there_is():
    assert is_due(Phase.RUNNING, Phase.BROKEN)
    assert is_due()
    assert is_due(Phase.WAITING)
    assert is_due(Phase.RUNNING, room=-1)


@pytest.mark.parametrize(("now_s", "expected"), [(600.0, True), (1200.0, True), (599.0, False), (601.0, False)])
def test_it_is_at_multiples_of_the_period(now_s, expected):
    assert is_due(Phase.RUNNING, now_s=now_s) is expected


def test_it_is_when_the_time_that_was_asked_for_has_come_a_moment_late():
    assert is_due(Phase.RUNNING, woken=True, now_s=600.2)


@pytest.mark.parametrize(("came_s", "asked"), [(1.0, True), (599.0, True), (0.0, False)])
def test_at_a_regular_decision_those_are_asked_who_came_since_the_one_before(came_s, asked):
    """Who came at the very time of that one was seen then, and dropped."""
    driver = Driver([an_offer("o", gpus=1, pool="p")], limits={"o": Limit(max_nodes=1)})
    driver.now_s = came_s
    driver.submit(a_job("late", submit_s=came_s, work=10.0))
    plan = ElasticBatch(drop=True).decide(replace(driver.kernel.snapshot(), now_s=600.0))
    assert ("late" in plan.shapes, "late" in plan.warnings) == (asked, not asked)
