"""Workers whose step did not fit into memory: all take fewer samples at a time, and nobody's retry is used."""

from __future__ import annotations

import pytest

from sublet.runtime.group.failures import Fault, WorkerCounts, fault_of
from sublet.runtime.group.states import APART_S, Forming, Gathering, Stepping
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_MEMORY
from tests.rigs.groups import all_ready, joined, sent, training


def short(group, worker_id, *, micro_batch=8, ends=False):
    return wire.ShortOfMemory(
        worker_id=worker_id,
        generation=group.round.number,
        step=10,
        samples=2 * micro_batch,
        micro_batch=micro_batch,
        ends=ends,
    )


def test_all_members_meet_again_and_hear_of_the_limit():
    group = training("a", "b")
    first, second = group.workers
    group.hear(short(group, second), 3.0)
    orders = [order for _, order in sent(group, wire.Regroup)]
    assert {order.worker_id for order in orders} == {first, second}
    assert [(order.micro_batch, order.broken) for order in orders] == [(8, True)] * 2
    for worker_id in group.workers:  # cries of the round that is over
        group.hear(wire.Broke(worker_id=worker_id, generation=group.round.number - 1, step=10, why="gone"), 3.1)
    joined(group, 10, 4.0)
    assert isinstance(group.state, Stepping)
    assert not group.failures


def test_a_worker_alone_goes_on_by_itself():
    group = training("a")
    [alone] = group.workers
    group.hear(short(group, alone), 3.0)
    assert isinstance(group.state, Stepping)
    assert not sent(group, wire.Regroup)
    group.move(2, (("a", 1), ("b", 1)), 0, 4.0)
    all_ready(group, 5.0)
    group.hear(wire.Saved(worker_id=alone, step=10, done=10.0, seconds=0.1, blocked_s=0.0, size_bytes=1), 6.0)
    assert [order.micro_batch for _, order in sent(group, wire.Regroup)] == [8, 8]


@pytest.mark.parametrize("code", [EXIT_MEMORY, -15])
def test_a_process_that_ended_for_it_is_started_again_when_its_memory_is_free(code):
    group = training("a", "b")
    first, second = group.workers
    group.hear(short(group, second, ends=True), 3.0)
    assert [end.worker_id for _, end in sent(group, wire.EndWorker)] == [second]
    assert not sent(group, wire.StartWorker)
    group.hear(wire.Broke(worker_id=first, generation=group.round.number, step=10, why="gone"), 3.1)
    group.tick(3.2 + APART_S)  # it takes its time
    assert isinstance(group.state, Stepping)
    group.hear(wire.WorkerDown(worker_id=second, code=code), 6.0)
    assert isinstance(group.state, Gathering)
    all_ready(group, 8.0)
    assert isinstance(group.state, Forming)
    assert [order.micro_batch for _, order in sent(group, wire.Regroup)] == [8, 8]
    assert not group.failures
    assert not group.news


def test_all_members_may_run_short_at_once():
    group = training("a", "b")
    first, second = group.workers
    group.hear(short(group, first, ends=True), 3.0)
    group.hear(short(group, second, ends=True), 3.0)
    group.hear(wire.WorkerDown(worker_id=first, code=EXIT_MEMORY), 4.0)
    group.hear(wire.WorkerDown(worker_id=second, code=EXIT_MEMORY), 4.1)
    all_ready(group, 8.0)
    assert [order.micro_batch for _, order in sent(group, wire.Regroup)] == [8, 8]
    assert not group.failures


def test_members_that_run_short_by_different_limits_meet_under_the_lower_one():
    group = training("a", "b")
    first, second = group.workers
    late = short(group, second, micro_batch=7)
    group.hear(short(group, first, micro_batch=8), 3.0)
    group.hear(late, 3.0)
    assert [order.micro_batch for _, order in sent(group, wire.Regroup)] == [8, 8, 7, 7]


def test_one_that_ends_under_the_limit_that_it_asks_for_counts_as_a_failure_of_nobody():
    group = training("a", "b")
    first, second = group.workers
    group.hear(short(group, first), 3.0)
    sent(group, wire.Regroup)
    joined(group, 10, 4.0)
    group.hear(short(group, second, ends=True), 5.0)  # it would do so for ever
    group.hear(wire.WorkerDown(worker_id=second, code=EXIT_MEMORY), 6.0)
    assert dict(group.failures) == {"infra": 1}
    assert fault_of(EXIT_MEMORY) is Fault.INFRA


def test_the_limit_outlives_the_controller():
    widths, after = WorkerCounts(), WorkerCounts()
    assert widths.note_short(8)
    assert not widths.note_short(8)
    assert not widths.note_short(0)
    assert widths.note_short(4)
    after.restore(widths.facts())
    assert after.micro_batch == 4
    after.restore({"worked": 1, "widest": 1})  # of an earlier version
    assert after.micro_batch == 0
