"""What a group of workers does when a node is about to go, or nobody stays to hand the state over."""

from __future__ import annotations

import pytest

from sublet.domain.events import JobFailed
from sublet.runtime.controller.watch.history import row_from_event
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.jobs.spec import Retries
from sublet.wire import messages as wire
from tests.rigs.groups import a_group, all_ready, joined, sent, training


def test_a_group_leaves_a_doomed_node_and_trains_on_without_it():
    group = training("a", "b")
    group.evacuate("b", 3.0)
    assert [(node, order.world, order.broken) for node, order in sent(group, wire.Regroup)] == [("a", 1, False)]
    assert [node for node, _ in sent(group, wire.Leave)] == ["b"]
    joined(group, 11, 4.0)
    assert group.training
    group.node_lost("b", 5.0)
    assert group.training
    assert not group.broken


def test_the_order_that_follows_the_loss_finds_it_done_already():
    group = training("a", "b")
    group.evacuate("b", 3.0)
    joined(group, 11, 4.0)
    group.node_lost("b", 5.0)
    group.outbox.clear()
    group.news.clear()
    group.move(2, (("a", 1),), 0, 6.0)
    assert [(news.outcome, news.generation) for news in group.news] == [(Outcome.MOVED, 2)]
    assert group.outbox == []


def test_a_group_that_is_all_on_the_doomed_node_saves_before_it_goes():
    group = training("a")
    group.evacuate("a", 3.0)
    ((_, leave),) = sent(group, wire.Leave)
    assert leave.save
    assert sent(group, wire.Regroup) == []


def test_one_that_leaves_before_it_has_met_anybody_does_not_say_how_far_the_job_is():
    """It was started again, and is paused before it has read the checkpoint: it knows of no step."""
    group = training("a", step=7)
    group.stop(2, resumable=True, wall_s=3.0)
    gone(group, next(iter(group.workers)), 7, 4.0)
    group.move(3, (("a", 1),), 0, 6.0)
    all_ready(group, 7.0)
    assert sent(group, wire.Regroup)
    group.stop(4, resumable=True, wall_s=8.0)
    gone(group, next(iter(group.workers)), 0, 9.0)
    assert (group.step, group.done) == (7, 7.0)


def test_a_group_without_workers_on_the_doomed_node_does_nothing():
    group = training("a", "b")
    group.evacuate("c", 3.0)
    assert group.outbox == []


def made_a_step(group, step, at_s):
    """It is known to train so wide."""
    first = next(worker for worker in group.workers.values() if worker.rank == 0)
    facts = {"generation": group.joined.generation, "done": 1.0, "epoch": 0, "loss": 1.0, "step_s": 0.1}
    group.hear(wire.Stepped(worker_id=first.id, step=step, **facts), at_s)


def gone(group, worker_id, step, at_s):
    """It has saved and left."""
    group.hear(wire.Left(worker_id=worker_id, generation=group.round.number, step=step, done=float(step)), at_s)
    group.hear(wire.WorkerDown(worker_id=worker_id, code=83), at_s)


def test_a_group_whose_newcomers_are_not_ready_when_its_last_node_goes_saves_and_leaves():
    """Seen: the start took longer than the notice, and all that was made since the notice was lost."""
    group = training("a")
    group.move(2, (("b", 1),), 0, 3.0)
    ((_, start),) = sent(group, wire.StartWorker)
    group.evacuate("a", 30.0)
    ((node, leave),) = sent(group, wire.Leave)
    assert (node, leave.save) == ("a", True)
    gone(group, leave.worker_id, 601, 31.0)
    group.node_lost("a", 32.0)
    group.move(3, (("b", 1),), 0, 32.0)
    assert sent(group, wire.StartWorker) == [], "it is on its way"
    group.hear(wire.Ready(worker_id=start.worker_id), 43.0)
    assert [(node, order.world, order.broken) for node, order in sent(group, wire.Regroup)] == [("b", 1, False)]
    assert group.step == 601


def test_newcomers_that_come_before_the_node_is_lost_wait_for_the_checkpoint():
    group = training("a")
    group.move(2, (("b", 1),), 0, 3.0)
    group.evacuate("a", 30.0)
    ((_, leave),) = sent(group, wire.Leave)
    all_ready(group, 31.0)
    assert sent(group, wire.Regroup) == []
    gone(group, leave.worker_id, 601, 32.0)
    assert [node for node, _ in sent(group, wire.Regroup)] == ["b"]


def test_nodes_that_go_together_leave_nobody_to_hand_the_state_over():
    for order in ((("c", 1),), (("a", 1), ("b", 1), ("c", 1))):
        group = training("a", "b")
        group.move(2, order, 0, 3.0)
        group.evacuate("a", 30.0, ["b"])
        assert sorted((node, leave.save) for node, leave in sent(group, wire.Leave)) == [("a", True), ("b", True)]
        assert sent(group, wire.Regroup) == []
    group = training("a", "b")
    group.evacuate("a", 30.0, ["b"])
    assert len(sent(group, wire.Leave)) == 2


def test_survivors_train_on_without_the_doomed_node_until_the_newcomers_are_there():
    group = training("a", "b")
    made_a_step(group, 11, 2.5)
    group.move(2, (("b", 1), ("c", 1)), 0, 3.0)
    ((_, start),) = sent(group, wire.StartWorker)
    group.evacuate("a", 30.0)
    assert [(node, order.world) for node, order in sent(group, wire.Regroup)] == [("b", 1)]
    assert [node for node, _ in sent(group, wire.Leave)] == ["a"]
    joined(group, 601, 31.0)
    assert group.training
    assert (group.size, group.news) == (1, []), "the order is not followed yet"
    group.evacuate("a", 31.5)
    assert sent(group, wire.Regroup) == [], "it has left it"
    group.hear(wire.Ready(worker_id=start.worker_id), 43.0)
    assert [order.world for _, order in sent(group, wire.Regroup)] == [2, 2]
    joined(group, 700, 44.0)
    assert [(news.outcome, news.generation) for news in group.news] == [(Outcome.MOVED, 2)]


def test_newcomers_on_the_doomed_node_are_not_waited_for():
    group = training("a", "b")
    made_a_step(group, 11, 2.5)
    group.move(2, (("a", 2), ("b", 1), ("c", 1)), 0, 3.0)
    starts = dict(sent(group, wire.StartWorker))
    group.evacuate("a", 30.0)
    assert [end.worker_id for _, end in sent(group, wire.EndWorker)] == [starts["a"].worker_id]
    joined(group, 601, 31.0)
    sent(group, wire.Regroup)
    group.hear(wire.Ready(worker_id=starts["c"].worker_id), 43.0)
    assert sorted((node, order.world) for node, order in sent(group, wire.Regroup)) == [("b", 2), ("c", 2)]


def test_a_move_that_nobody_survives_hands_the_state_over_through_a_checkpoint():
    group = training("a")
    group.move(2, (("b", 1),), 0, 3.0)
    all_ready(group, 4.0)
    ((_, leave),) = sent(group, wire.Leave)
    assert leave.save
    assert sent(group, wire.Regroup) == []  # not before the old one has saved and gone
    group.hear(wire.Left(worker_id=leave.worker_id, generation=group.round.number, step=12, done=12.0), 5.0)
    group.hear(wire.WorkerDown(worker_id=leave.worker_id, code=83), 5.0)
    assert [node for node, _ in sent(group, wire.Regroup)] == ["b"]


def ended_with_0(group, at_s):
    for worker_id in list(group.workers):
        group.hear(wire.WorkerDown(worker_id=worker_id, code=0), at_s)
    (news,) = [news for news in group.news if news.outcome in (Outcome.FINISHED, Outcome.FAILED, Outcome.RESTARTED)]
    return news


def test_a_script_that_never_opens_its_session_has_failed():
    group = a_group()
    group.move(1, (("a", 1), ("b", 1)), 0, 0.0)
    news = ended_with_0(group, 1.0)
    assert news.outcome is Outcome.FAILED
    assert "never opened its session" in news.why
    assert "--no-sdk" in news.why


def test_the_history_tells_what_has_failed_and_not_only_what_to_do():
    why = (
        "Traceback (most recent call last):\n  File ...\nsublet.errors.RanksDiffer: at step 32 ...\n  next: change it\n"
    )
    line = row_from_event(JobFailed(0.0, "job-1", why), None, None)
    assert line.text == "failed: sublet.errors.RanksDiffer: at step 32 ...; next: change it"


def test_a_script_that_ends_within_its_session_is_not_finished():
    news = ended_with_0(training("a", "b"), 3.0)
    assert news.outcome is Outcome.RESTARTED
    assert "before its session was over" in news.why


def test_a_script_is_finished_when_its_session_says_so():
    group = training("a", "b")
    group.hear(wire.Finished(worker_id=next(iter(group.workers)), step=20, done=20.0), 3.0)
    assert ended_with_0(group, 4.0).outcome is Outcome.FINISHED


@pytest.mark.parametrize("dies", [True, False])
def test_nobody_waits_for_one_that_is_through_where_another_died_on_its_way_out(dies):
    """As rank 0 saved for the last time. The others of an old group that is whole hear of the end by themselves."""
    group = training("a", "b", "c")
    made_a_step(group, 20, 2.5)
    group.hear(wire.Saved(worker_id="job-1", step=20, done=20.0, seconds=0.1, blocked_s=0.0, size_bytes=1), 2.6)
    first, second, third = (next(each for each in group.workers.values() if each.node_id == node) for node in "abc")
    facts = {"generation": group.round.number, "step": 10, "done": 10.0, "work": 100.0}
    group.hear(wire.Joined(worker_id=second.id, **facts), 2.7)
    group.move(2, (("a", 1), ("b", 1), ("d", 1)), 0, 3.0)
    all_ready(group, 4.0)
    assert [node for node, _ in sent(group, wire.Leave)] == ["c"]
    (new,) = group.workers.keys() - {first.id, second.id, third.id}
    if dies:
        group.hear(wire.WorkerDown(worker_id=third.id, code=-9), 4.5)
    group.hear(wire.Finished(worker_id=first.id, step=20, done=20.0), 5.0)
    ended = {order.worker_id for _, order in sent(group, wire.EndWorker)}
    if not dies:
        assert second.id not in ended
        return
    assert ended == {second.id, new}
    for name in ended:
        group.hear(wire.WorkerDown(worker_id=name, code=-9), 5.5)
    group.hear(wire.WorkerDown(worker_id=first.id, code=0), 6.0)
    assert group.news[-1].outcome is Outcome.FINISHED


def test_a_newcomer_does_not_wait_for_a_group_whose_last_step_is_made():
    group = training("a")
    (first,) = group.workers
    group.move(2, (("a", 1), ("b", 1)), 0, 3.0)
    all_ready(group, 4.0)
    for _, save in sent(group, wire.SaveNow):
        facts = {"seconds": 0.1, "blocked_s": 0.0, "size_bytes": 1}
        group.hear(wire.Saved(worker_id=save.worker_id, step=group.step, done=10.0, **facts), 4.0)
    assert {node for node, _ in sent(group, wire.Regroup)} == {"a", "b"}
    group.hear(wire.Finished(worker_id=first, step=20, done=20.0), 5.0)  # said before it heard of the new group
    ((node, end),) = sent(group, wire.EndWorker)
    assert node == "b"
    group.hear(wire.WorkerDown(worker_id=first, code=0), 5.0)
    group.hear(wire.WorkerDown(worker_id=end.worker_id, code=-9), 5.0)
    assert group.news[-1].outcome is Outcome.FINISHED


def test_a_script_without_the_sdk_is_finished_when_it_ends_well():
    group = a_group(sdk=False)
    group.move(1, (("a", 1),), 0, 0.0)
    for worker_id in list(group.workers):
        group.hear(wire.WorkerUp(worker_id=worker_id, pid=1), 0.5)
    assert ended_with_0(group, 1.0).outcome is Outcome.FINISHED


def test_workers_that_ended_well_while_the_controller_was_away_without_a_step_have_trained_nothing():
    group = a_group()
    group.adopt(1, (("a", 1),), 0, trains=True, wall_s=0.0)
    group.hear(wire.WorkerDown(worker_id="job-1.1.0", code=0), 0.5)
    group.all_agents_came(1.0)
    assert group.news[-1].outcome is Outcome.FAILED


def test_a_script_that_hangs_at_every_start_is_given_up():
    group = a_group(sdk=False, hang_s=1000.0, retries=Retries(infra=2))
    group.move(1, (("a", 1),), 0, 0.0)
    now_s, told = 0.0, []
    for _ in range(3):
        ((_, start),) = sent(group, wire.StartWorker)
        group.hear(wire.WorkerUp(worker_id=start.worker_id, pid=1), now_s)
        now_s += 1001.0  # longer than what makes up for failures, but nothing was done in it
        group.hear(wire.WorkerSeen(worker_id=start.worker_id, quiet_s=1001.0), now_s)
        group.tick(now_s)
        told += [(news.outcome, news.silent_s) for news in group.news if news.outcome is not Outcome.MOVED]
        group.news.clear()
        group.hear(wire.WorkerDown(worker_id=start.worker_id, code=-9), now_s)
        now_s += 60.0
        group.tick(now_s)
    assert told == [(Outcome.RESTARTED, 1001.0), (Outcome.RESTARTED, 1001.0), (Outcome.FAILED, 1001.0)]


def test_a_rank_that_exits_well_inside_its_session_is_what_is_told_and_not_the_cry_of_the_others():
    group = training("a", "b")
    left, other = sorted(group.workers.values(), key=lambda worker: -worker.rank)
    cry = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:20222"
    group.hear(wire.Broke(worker_id=other.id, generation=group.round.number, step=10, why=cry), 3.0)
    group.hear(wire.WorkerDown(worker_id=left.id, code=0), 3.1)
    group.tick(3.2)
    assert not group.news, "word of a good end may be on its way"
    group.tick(6.0)
    (news,) = group.news
    assert news.outcome is Outcome.RESTARTED
    assert f"worker {left.id} ended with exit code 0 before its session was over" in news.why
    assert group.failures == {"user": 1}


def test_a_worker_that_dies_on_its_way_out_leaves_the_saving_to_another():
    group = training("a", "b")
    first, second = sorted(group.workers.values(), key=lambda worker: worker.rank)
    group.stop(2, resumable=True, wall_s=3.0)
    assert [leave.save for _, leave in sent(group, wire.Leave)] == [True, True]
    group.hear(wire.WorkerDown(worker_id=first.id, code=-9), 4.0)
    ((node, leave),) = sent(group, wire.Leave)
    assert (node, leave.worker_id, leave.save, leave.broken) == ("b", second.id, True, True)
    group.hear(wire.Left(worker_id=second.id, generation=leave.generation, step=11, done=11.0), 5.0)
    group.hear(wire.WorkerDown(worker_id=second.id, code=83), 5.0)
    assert [news.outcome for news in group.news] == [Outcome.STOPPED]
    assert group.step == 11
