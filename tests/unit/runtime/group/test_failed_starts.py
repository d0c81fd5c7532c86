"""Starts that fail for want of something: how they are counted, and the pause after them."""

from __future__ import annotations

from sublet.runtime.group.failures import Fault, back_off_s
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_LOST
from tests.rigs.groups import a_group, all_ready, sent


def cannot_start(group, start, at_s):
    group.hear(wire.WorkerDown(worker_id=start.worker_id, code=EXIT_LOST, error="cannot start: stale"), at_s)


def test_all_workers_of_one_start_that_fail_are_one_failure():
    group = a_group()
    group.move(1, (("a", 1), ("b", 1), ("c", 1)), 0, 0.0)
    for number, (_, start) in enumerate(sent(group, wire.StartWorker)):
        cannot_start(group, start, 1.0 + number)
    assert group.failures[Fault.INFRA] == group.patience.in_a_row == 1
    assert len(sent(group, wire.StartWorker)) == 3  # and each of them is started once more
    assert not group.news[1:]


def test_a_start_after_a_failure_that_fails_counts_again():
    group = a_group()
    group.move(1, (("a", 1),), 0, 0.0)
    for turn in range(1, 4):
        ((_, start),) = sent(group, wire.StartWorker)
        cannot_start(group, start, float(turn))
        assert group.failures[Fault.INFRA] == turn


def back_again(group, *, failures, failed_s, wall_s):
    """As a new controller finds it, whose last one noted so many failures."""
    group.failures[Fault.INFRA] = group.patience.in_a_row = failures
    group.patience.failed_s = failed_s
    group.adopt(1, (("a", 1),), 0, trains=False, wall_s=wall_s)
    group.all_agents_came(wall_s)
    group.move(1, (("a", 1),), 0, wall_s)


def test_the_pause_after_a_failure_goes_on_under_the_next_controller():
    group, failed_s = a_group(), 95.0
    back_again(group, failures=6, failed_s=failed_s, wall_s=100.0)
    group.tick(failed_s + back_off_s(6) - 0.1)
    assert not sent(group, wire.StartWorker)
    group.tick(failed_s + back_off_s(6))
    all_ready(group, 120.0)
    assert sent(group, wire.Regroup)


def test_a_pause_that_was_over_before_the_next_controller_began_is_not_waited_for_again():
    group = a_group()
    back_again(group, failures=6, failed_s=10.0, wall_s=100.0)
    assert sent(group, wire.StartWorker)


def test_a_later_order_is_followed_at_once_though_a_pause_was_left():
    group = a_group()
    back_again(group, failures=6, failed_s=95.0, wall_s=100.0)
    group.node_lost("a", 101.0)
    group.move(2, (("b", 1),), 0, 102.0)
    assert [node for node, _ in sent(group, wire.StartWorker)] == ["b"]
