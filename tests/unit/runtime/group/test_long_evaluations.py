"""A script that evaluates for longer than a hang takes to be seen: it makes no step, hears no order, and is well."""

from __future__ import annotations

import pytest

from sublet.runtime.group.protocol import Outcome
from sublet.wire import messages as wire
from tests.rigs.groups import a_group, all_ready, joined, sent, training

HANG_S = 1800.0  # as a job file has it that says nothing


def stepped(group, step, at_s):
    first = rank_0(group)
    facts = {"worker_id": first, "generation": group.round.number, "step": step, "done": float(step)}
    group.hear(wire.Stepped(**facts, epoch=0, loss=1.0, step_s=0.1), at_s)


def rank_0(group):
    return next(worker.id for worker in group.workers.values() if worker.rank == 0)


def evaluates(group, begin_s, end_s, who=None):
    """One member is in the script's own code and says so; time passes for all."""
    at_s = begin_s
    while at_s < end_s:
        at_s += 2.0
        group.hear(wire.Busy(worker_id=who or rank_0(group)), at_s)
        group.tick(at_s)
    return at_s


def why(group):
    return [news.why for news in group.news if news.outcome is not Outcome.MOVED]


@pytest.mark.parametrize("nodes", [("a",), ("a", "b")])
def test_an_evaluation_of_many_minutes_is_no_hang(nodes):
    group = training(*nodes)
    stepped(group, 11, 3.0)
    at_s = evaluates(group, 3.0, 1000.0)
    assert why(group) == []
    assert group.training
    stepped(group, 12, at_s)
    group.tick(at_s + 59.0)
    assert why(group) == []


def test_an_evaluation_before_the_first_step_is_none_either():
    group = training("a")
    evaluates(group, 3.0, 1000.0)
    assert why(group) == []


def test_whoever_falls_silent_in_its_evaluation_hangs_a_minute_later():
    group = training("a", "b")
    stepped(group, 11, 3.0)
    at_s = evaluates(group, 3.0, 500.0)
    group.tick(at_s + 59.0)
    assert why(group) == []
    group.tick(at_s + 61.0)
    (news,) = [news for news in group.news if news.outcome is Outcome.RESTARTED]
    assert "it hangs" in news.why
    assert news.silent_s == 61.0, "the evaluation itself was work"


def test_a_script_that_is_busy_for_ever_hangs_after_what_its_job_file_says():
    group = training("a")
    stepped(group, 11, 3.0)
    evaluates(group, 3.0, 3.0 + HANG_S)
    assert why(group) == []
    evaluates(group, 3.0 + HANG_S, 3.0 + HANG_S + 4.0)
    assert ["training.hang" in text for text in why(group)] == [True]


def test_a_group_forms_when_the_evaluation_is_over():
    """A node gets a notice meanwhile: whoever evaluates cannot come at once, and the others wait for it."""
    group = training("a", "b")
    stepped(group, 11, 3.0)
    at_s = evaluates(group, 3.0, 40.0)
    group.evacuate("b", at_s)
    assert [node for node, _ in sent(group, wire.Regroup)] == ["a"]
    at_s = evaluates(group, at_s, at_s + 300.0)
    assert why(group) == []
    joined(group, 11, at_s)
    assert group.training


def test_a_group_in_which_nobody_is_busy_forms_within_half_a_minute_or_not_at_all():
    group = a_group()
    group.move(1, (("a", 1), ("b", 1)), 0, 0.0)
    all_ready(group, 1.0)
    group.tick(30.0)
    assert why(group) == []
    group.tick(32.0)
    assert ["did not form" in text for text in why(group)] == [True]
