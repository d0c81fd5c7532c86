"""Agents tell a new controller of every end that they remember: those that the last one has dealt with are no news."""

from __future__ import annotations

import json

import pytest

from sublet.runtime.controller.memory.records import JobRecord
from sublet.runtime.group.build import build_group
from sublet.runtime.group.failures import FORGIVEN_S
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.workers import Census
from sublet.runtime.jobs.spec import Retries
from sublet.wire import messages as wire
from tests.rigs.groups import a_group, all_ready, joined, sent


def all_up(group, at_s):
    """Scripts without the SDK."""
    while starts := sent(group, wire.StartWorker):
        for node_id, start in starts:
            meeting = {"host": node_id, "port": 1} if start.offers else {}
            group.hear(wire.WorkerUp(worker_id=start.worker_id, pid=1, **meeting), at_s)


def end(group, code, at_s, *worker_ids):
    """These, or all; what their agents remember of it."""
    downs = [wire.WorkerDown(worker_id=worker_id, code=code) for worker_id in worker_ids or list(group.workers)]
    for down in downs:
        group.hear(down, at_s)
    return downs


def heir(group, *placement, ends=(), last_word=None):
    """A new controller has adopted it and met all agents."""
    stored = json.loads(json.dumps(JobRecord("job-1", group.spec, group, 0.0).to_store()))
    new = build_group("job-1", group.spec, log_of=str, env=dict, era=1)
    JobRecord("job-1", group.spec, new, 0.0).restore(stored)
    new.adopt(group.generation, placement, 0, trains=True, wall_s=1000.0)
    if last_word is not None:
        new.hear(last_word, 1000.0)
    for down in ends:
        new.hear(down, 1000.0)
    new.all_agents_came(1001.0)
    return new


def outcomes(group):
    return [news.outcome for news in group.news]


def a_script_that_runs_again_after(code):
    group = a_group(sdk=False)
    group.move(1, (("a", 1),), 0, 0.0)
    all_up(group, 1.0)
    ends = end(group, code, 2.0)
    group.tick(10.0)
    all_up(group, 11.0)
    assert outcomes(group) == [Outcome.MOVED, Outcome.RESTARTED, Outcome.MOVED]
    return group, ends


@pytest.mark.parametrize("code", [5, -9])
def test_a_script_that_failed_once_and_ended_well_while_nobody_was_there_has_finished(code):
    group, ends = a_script_that_runs_again_after(code)
    (second,) = group.workers
    new = heir(group, ("a", 1), ends=[*ends, wire.WorkerDown(worker_id=second, code=0)])
    assert outcomes(new) == [Outcome.FINISHED]


@pytest.mark.parametrize("code", [5, -9])
def test_a_session_that_failed_once_and_ended_well_while_nobody_was_there_has_finished(code):
    group = a_group()
    group.move(1, (("a", 1),), 0, 0.0)
    all_ready(group, 1.0)
    joined(group, 10, 2.0)
    ends = end(group, code, 3.0)
    group.tick(60.0)
    all_ready(group, 61.0)
    joined(group, 10, 62.0)
    assert outcomes(group) == [Outcome.MOVED, Outcome.RESTARTED, Outcome.MOVED]
    (second,) = group.workers
    last_word = wire.Finished(worker_id=second, step=100, done=100.0)
    ends.append(wire.WorkerDown(worker_id=second, code=0))
    assert outcomes(heir(group, ("a", 1), ends=ends, last_word=last_word)) == [Outcome.FINISHED]


@pytest.mark.parametrize("code", [83, -9, 5])
def test_a_worker_that_had_to_go_for_a_smaller_group_says_nothing_of_how_the_rest_ended(code):
    group = a_group()
    group.move(1, (("a", 2),), 0, 0.0)
    all_ready(group, 1.0)
    joined(group, 10, 2.0)
    group.hear(
        wire.Saved(worker_id=min(group.workers), step=10, done=10.0, seconds=0.0, blocked_s=0.0, size_bytes=1), 2.5
    )
    group.move(2, (("a", 1),), 0, 3.0)
    joined(group, 11, 4.0)
    (gone,) = [leave.worker_id for _, leave in sent(group, wire.Leave)]
    (stays,) = group.workers.keys() - {gone}  # the other is on its way out yet, and ends while nobody is there
    ends = [wire.WorkerDown(worker_id=gone, code=code), wire.WorkerDown(worker_id=stays, code=0)]
    last_word = wire.Finished(worker_id=stays, step=100, done=100.0)
    assert outcomes(heir(group, ("a", 1), ends=ends, last_word=last_word)) == [Outcome.FINISHED]


@pytest.mark.parametrize("sdk", [True, False])
def test_a_pause_on_the_same_node_says_nothing_of_how_the_job_ended(sdk):
    group = a_group(sdk=sdk)
    ends = []
    for generation in (1, 3):
        group.move(generation, (("a", 1),), 0, 0.0)
        if sdk:
            all_ready(group, 1.0)
            joined(group, 10, 2.0)
        else:
            all_up(group, 1.0)
        if generation == 1:
            group.stop(2, resumable=True, wall_s=3.0)
            ends += end(group, 83 if sdk else -15, 4.0)
    (second,) = group.workers
    last_word = wire.Finished(worker_id=second, step=100, done=100.0) if sdk else None
    ends.append(wire.WorkerDown(worker_id=second, code=0))
    assert outcomes(heir(group, ("a", 1), ends=ends, last_word=last_word)) == [Outcome.FINISHED]


def test_a_failure_that_was_counted_is_not_counted_again_before_its_retry_has_begun():
    group = a_group(sdk=False, retries=Retries(user=1))
    group.move(1, (("a", 1),), 0, 0.0)
    all_up(group, 1.0)
    ends = end(group, 5, 2.0)
    new = heir(group, ("a", 1), ends=ends)
    assert outcomes(new) == [Outcome.RESTARTED]
    assert new.failures == {"user": 1}


def test_a_failure_that_was_seen_and_not_judged_counts():
    group = a_group(sdk=False, retries=Retries(user=0))
    group.move(1, (("a", 2),), 0, 0.0)
    all_up(group, 1.0)
    first, second = group.workers
    ends = end(group, 5, 2.0, second)  # the other may follow it
    ends.append(wire.WorkerDown(worker_id=first, code=0))
    assert outcomes(heir(group, ("a", 2), ends=ends)) == [Outcome.FAILED]


def test_a_worker_that_was_started_after_the_last_look_counts():
    group, ends = a_script_that_runs_again_after(5)
    before = group.census
    new = heir(group, ("a", 1))
    all_up(new, 1002.0)
    (third,) = new.workers
    assert [before.has_counted(worker_id) for worker_id in (ends[0].worker_id, third)] == [True, False]


def test_a_controller_that_dies_before_all_agents_came_leaves_what_it_found():
    group, _ = a_script_that_runs_again_after(5)
    new = build_group("job-1", group.spec, log_of=str, env=dict, era=1)
    new.before = group.census
    new.adopt(1, (("a", 1),), 0, trains=True, wall_s=1000.0)
    assert new.census == group.census


def test_a_store_of_before_knows_of_no_end():
    assert not Census.from_facts({}).has_counted("job-1.1000000000.0")


# ---------------------------------------------------------------------- failures that are nobody's fault


@pytest.mark.parametrize(("trained_s", "outcome"), [(1.0, Outcome.FAILED), (FORGIVEN_S + 60.0, Outcome.RESTARTED)])
def test_failures_that_are_nobodys_fault_are_in_a_row_over_a_restart(trained_s, outcome):
    group = a_group(sdk=False, retries=Retries(infra=1))
    group.move(1, (("a", 1),), 0, 0.0)
    all_up(group, 1.0)
    end(group, -9, 2.0)
    group.tick(10.0)
    all_up(group, 11.0)
    new = heir(group, ("a", 1))
    new.news.clear()
    new.patience.failed_s = 1001.0
    all_up(new, 1002.0)
    end(new, -9, 1001.0 + trained_s)
    assert outcomes(new)[-1] is outcome
