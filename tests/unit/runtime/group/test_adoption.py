"""What a controller makes of a group that an earlier one left: which widths have worked, and who has finished."""

from __future__ import annotations

import json

import pytest

from sublet.runtime.controller.memory.records import JobRecord
from sublet.runtime.group import states
from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.wire import messages as wire
from tests.rigs.groups import sent

ONE, TWO = (("a", 1),), (("a", 1), ("b", 1))


def a_record(*, era=0, **facts):
    spec = JobSpec(**{"name": "job", "argv": ("x",), "cwd": "/", "max_workers": 4, "retries": Retries(user=0), **facts})
    group = build_group("job-1", spec, log_of=str, env=dict, era=era)
    return JobRecord("job-1", spec, group, 0.0)


def answer_starts(group, at_s):
    """Those that were started are ready, or run and are met."""
    while starts := sent(group, wire.StartWorker):
        for node_id, start in starts:
            up = wire.WorkerUp(worker_id=start.worker_id, pid=1, host=node_id, port=1)
            group.hear(wire.Ready(worker_id=start.worker_id) if group.spec.sdk else up, at_s)


def meet(group, at_s, *, step, steps=0):
    first = next(worker for worker in group.workers.values() if worker.rank == 0)
    facts = {"worker_id": first.id, "generation": group.round.number}
    group.hear(wire.Joined(**facts, step=step, done=float(step), work=100.0), at_s)
    if steps:
        done = float(step + steps)
        group.hear(wire.Stepped(**facts, step=step + steps, done=done, epoch=0, loss=1.0, step_s=0.1), at_s)


def healthy_at_one(**facts):
    record = a_record(**facts)
    group = record.group
    group.move(1, ONE, 0, 0.0)
    answer_starts(group, 0.0)
    if group.spec.sdk:
        meet(group, 99.0, step=0, steps=10)
    group.tick(100.0)
    group.outbox.clear()
    group.news.clear()
    return record


def killed(record, generation, placement, *, trains, ends=(), forget=()):
    """kill -9, and another controller that has the facts; workers have ended meanwhile."""
    facts = json.loads(json.dumps(record.to_store()))
    after = JobRecord("job-1", record.spec, a_record(era=1, sdk=record.spec.sdk).group, 0.0)
    after.group.spec = record.spec
    after.restore({name: value for name, value in facts.items() if name not in forget})
    after.group.adopt(generation, placement, 0, trains=trains, wall_s=200.0)
    gone = {end.worker_id for end in ends}
    for node_id in dict(placement):
        there = [w.id for w in record.group.workers.values() if w.node_id == node_id and w.id not in gone]
        after.group.agent_came(node_id, there, 200.0)
    for end in ends:
        after.group.hear(end, 200.0)
    after.group.all_agents_came(201.0)
    return after.group


def crash(group, at_s, why="CUDA out of memory"):
    for worker_id in list(group.workers):
        group.hear(wire.WorkerDown(worker_id=worker_id, code=1, error=why), at_s)
    group.tick(at_s + states.JUDGE_S + 1.0)


def outcomes(group):
    return [news.outcome for news in group.news]


def narrowed(group):
    assert Outcome.FAILED not in outcomes(group), [news.why for news in group.news]
    return [(news.width, news.back_to) for news in group.news if news.outcome is Outcome.NARROWED]


def two_ordered(record):
    record.group.move(2, TWO, 0, 100.0)
    return record.group


def save(group, at_s):
    """Whoever was asked to, has saved; their names."""
    asked = [order.worker_id for _, order in sent(group, wire.SaveNow)]
    for worker_id in asked:
        facts = {"seconds": 0.1, "blocked_s": 0.0, "size_bytes": 1, "done": float(group.step)}
        group.hear(wire.Saved(worker_id=worker_id, step=group.step, **facts), at_s)
    return asked


# ------------------------------------------------------------------ which widths have worked


def test_while_a_newcomer_starts_the_old_group_trains_on_and_saves_before_the_new_width_is_tried():
    record = healthy_at_one()
    old = two_ordered(record)
    first, newcomer = old.workers
    group = killed(record, 2, TWO, trains=False)
    assert not group.broken, "the old group trains"
    assert [end.worker_id for _, end in sent(group, wire.EndWorker)] == [newcomer], "nobody knows how far it is"
    group.move(2, TWO, 0, 201.0)
    assert group.training
    group.hear(wire.WorkerDown(worker_id=newcomer, code=-9), 201.0)
    stepped = {"generation": old.joined.generation, "step": 20, "done": 20.0, "epoch": 0, "loss": 1.0, "step_s": 0.1}
    group.hear(wire.Stepped(worker_id=first, **stepped), 202.0)
    answer_starts(group, 203.0)
    group.tick(203.0 + states.ADOPTED_S + 1.0)
    assert sent(group, wire.Regroup) == [], "it makes steps, and will have saved in a moment"
    assert save(group, 210.0) == [first]
    assert [(order.world, order.broken) for _, order in sent(group, wire.Regroup)] == [(2, False)] * 2
    meet(group, 211.0, step=20)
    crash(group, 212.0)
    assert narrowed(group) == [(2, 1)]


def test_an_old_group_that_says_nothing_is_not_waited_for():
    record = healthy_at_one()
    two_ordered(record)
    group = killed(record, 2, TWO, trains=False)
    group.move(2, TWO, 0, 201.0)
    answer_starts(group, 202.0)
    group.tick(202.0 + states.ADOPTED_S + 0.1)
    assert len(sent(group, wire.Regroup)) == 2


def test_a_width_at_which_no_step_was_made_has_not_worked_because_it_was_ordered():
    record = healthy_at_one()
    old = two_ordered(record)
    answer_starts(old, 101.0)
    save(old, 101.0)
    meet(old, 102.0, step=10)
    assert outcomes(old) == [Outcome.MOVED]
    group = killed(record, 2, TWO, trains=True)
    crash(group, 202.0)
    assert narrowed(group) == [(2, 1)]
    group.tick(220.0)
    assert len(sent(group, wire.StartWorker)) == 1


def test_a_width_of_the_last_controller_has_worked_once_a_step_at_it_is_heard():
    record = healthy_at_one()
    old = two_ordered(record)
    answer_starts(old, 101.0)
    save(old, 101.0)
    meet(old, 102.0, step=10)
    group = killed(record, 2, TWO, trains=True)
    stepped = {"generation": old.round.number, "step": 20, "done": 20.0, "epoch": 0, "loss": 1.0, "step_s": 0.1}
    group.hear(wire.Stepped(worker_id=next(iter(group.workers)), **stepped), 202.0)
    assert group.widths.facts() == {"worked": 2, "widest": 2}
    crash(group, 203.0)
    assert outcomes(group) == [Outcome.FAILED], "it is not the width"


@pytest.mark.parametrize("trains", [True, False])
def test_a_plain_script_that_dies_at_its_new_width_after_a_while_is_one_again(trains):
    record = healthy_at_one(sdk=False)
    old = two_ordered(record)
    for worker_id in list(old.workers):
        old.hear(wire.WorkerDown(worker_id=worker_id, code=-15), 100.0)
    answer_starts(old, 101.0)
    old.tick(120.0)
    group = killed(record, 2, TWO, trains=trains)
    if not trains:
        group.move(2, TWO, 0, 201.0)
        for worker_id in list(group.workers):
            group.hear(wire.WorkerDown(worker_id=worker_id, code=-9), 201.0)
        answer_starts(group, 202.0)
    crash(group, 230.0)
    assert narrowed(group) == [(2, 1)]
    group.tick(260.0)
    assert len(sent(group, wire.StartWorker)) == 1


def test_nothing_is_known_of_a_job_whose_facts_do_not_say():
    group = killed(healthy_at_one(), 1, ONE, trains=True, forget=("widths", "finished"))
    assert (group.widths.worked, group.widths.widest, group.finished) == (0, 0, False)
    assert group.training


# ------------------------------------------------------------------ who has finished


def test_a_script_that_ends_well_in_the_middle_has_failed_though_no_controller_was_there():
    record = healthy_at_one()
    end = wire.WorkerDown(worker_id=next(iter(record.group.workers)), code=0)
    (news,) = killed(record, 1, ONE, trains=True, ends=[end]).news
    assert news.outcome is Outcome.FAILED
    assert news.why.startswith("the script ended with exit code 0 before its session was over")


@pytest.mark.parametrize("trains", [True, False])
def test_a_script_that_said_its_last_word_while_no_controller_was_there_has_finished(trains):
    record = healthy_at_one()
    name = next(iter(record.group.workers))
    ends = [wire.Finished(worker_id=name, step=50, done=50.0), wire.WorkerDown(worker_id=name, code=0)]
    left = wire.WorkerDown(worker_id="job-1.1.7", code=83)  # of long ago: agents tell it again
    group = killed(record, 1, ONE, trains=trains, ends=[left, *ends])
    assert outcomes(group) == [Outcome.FINISHED]
    assert group.step == 50


def test_a_last_word_that_the_last_controller_heard_is_remembered():
    record = healthy_at_one()
    name = next(iter(record.group.workers))
    record.group.hear(wire.Finished(worker_id=name, step=50, done=50.0), 110.0)
    assert not record.group.news, "the script does what it does after its training"
    tail = killed(record, 1, ONE, trains=True)
    tail.tick(201.0 + states.ADOPTED_S + 1.0)
    assert sent(tail, wire.Regroup) == [], "nobody listens any more"
    tail.hear(wire.WorkerDown(worker_id=name, code=0), 210.0)
    assert outcomes(tail) == [Outcome.FINISHED]
    ended = killed(record, 1, ONE, trains=True, ends=[wire.WorkerDown(worker_id=name, code=0)])
    assert outcomes(ended) == [Outcome.FINISHED]


def test_a_script_that_has_done_all_its_work_has_finished_though_its_last_word_is_lost():
    record = healthy_at_one()
    name = next(iter(record.group.workers))
    facts = {"worker_id": name, "generation": record.group.round.number, "epoch": 0, "loss": 1.0, "step_s": 0.1}
    record.group.hear(wire.Stepped(**facts, step=100, done=100.0), 110.0)
    group = killed(record, 1, ONE, trains=True, ends=[wire.WorkerDown(worker_id=name, code=0)])
    assert outcomes(group) == [Outcome.FINISHED]


def test_a_script_that_fails_after_its_training_while_no_controller_is_there_has_failed():
    record = healthy_at_one()
    name = next(iter(record.group.workers))
    ends = [wire.Finished(worker_id=name, step=50, done=50.0), wire.WorkerDown(worker_id=name, code=1, error="boom")]
    group = killed(record, 1, ONE, trains=True, ends=ends)
    assert [(news.outcome, news.why) for news in group.news] == [(Outcome.FAILED, "boom")]


def test_the_batch_of_the_plan_outlives_the_controller():
    record = healthy_at_one(sdk=True)
    record.group.move(2, ONE, 256, 101.0)
    facts = json.loads(json.dumps(record.to_store()))
    after = JobRecord("job-1", record.spec, a_record(era=1, sdk=True).group, 0.0)
    after.restore(facts)
    after.group.adopt(2, ONE, 256, trains=True, wall_s=200.0)
    after.group.agent_came("a", [], 200.0)
    after.group.all_agents_came(201.0)  # all have gone: others are started
    answer_starts(after.group, 202.0)
    orders = [message for _, message in after.group.outbox if isinstance(message, wire.Regroup)]
    assert orders
    assert {order.batch for order in orders} == {256}
