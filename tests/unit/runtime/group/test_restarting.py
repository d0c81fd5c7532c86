"""Workers of scripts without the SDK: stopped and started, because nobody can ask them to regroup."""

from __future__ import annotations

from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.states import Idle, Running, Starting
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from tests.rigs.groups import sent


def a_group(**facts):
    spec = JobSpec(**{"name": "job", "argv": ("x",), "cwd": "/", "max_workers": 4, "sdk": False, **facts})
    return build_group("job-1", spec, log_of=str, env=dict)


def come(group, at_s):
    """Those that were started run; the first says where it is met, if it was to."""
    for node_id, start in sent(group, wire.StartWorker):
        meeting = {"host": node_id, "port": 29500} if start.offers else {}
        group.hear(wire.WorkerUp(worker_id=start.worker_id, pid=1, **meeting), at_s)


def running(*nodes):
    group = a_group()
    group.move(1, tuple((node, 1) for node in nodes), 0, 0.0)
    come(group, 0.0)
    come(group, 0.0)
    assert isinstance(group.state, Running)
    group.news.clear()
    return group


def outcomes(group):
    return [news.outcome for news in group.news]


def test_the_others_start_when_it_is_known_where_the_first_is_met():
    group = a_group()
    group.move(1, (("a", 1), ("b", 1), ("c", 1)), 0, 0.0)
    ((node_id, first),) = sent(group, wire.StartWorker)
    assert (node_id, first.offers) == ("a", True)
    group.hear(wire.WorkerUp(worker_id=first.worker_id, pid=1, host="10.0.0.1", port=29500), 1.0)
    others = sent(group, wire.StartWorker)
    assert [(node, start.env["MASTER_ADDR"], start.env["RANK"]) for node, start in others] == [
        ("b", "10.0.0.1", "1"),
        ("c", "10.0.0.1", "2"),
    ]


def test_a_move_ends_all_before_it_starts_any():
    group = running("a", "b")
    group.move(2, (("a", 1), ("c", 1)), 0, 10.0)
    assert [end.grace_s for _, end in sent(group, wire.EndWorker)] == [30.0, 30.0]
    first, last = list(group.workers)
    group.hear(wire.WorkerDown(worker_id=first, code=-15), 11.0)
    assert sent(group, wire.StartWorker) == []
    group.hear(wire.WorkerDown(worker_id=last, code=0), 12.0)
    assert [node for node, _ in sent(group, wire.StartWorker)] == ["a"]


def test_a_worker_that_is_through_before_the_others_run_is_not_missing():
    group = a_group()
    group.move(1, (("a", 1), ("b", 1)), 0, 0.0)
    come(group, 0.0)
    first, second = group.workers
    group.hear(wire.WorkerDown(worker_id=first, code=0), 0.5)
    come(group, 1.0)
    group.tick(2.0)
    assert outcomes(group) == [Outcome.MOVED]
    group.hear(wire.WorkerDown(worker_id=second, code=0), 3.0)
    assert outcomes(group) == [Outcome.MOVED, Outcome.FINISHED]


def test_whoever_outlives_a_lost_node_ends_and_waits_for_the_kernel():
    group = running("a", "b")
    group.node_lost("b", 10.0)
    assert [node for node, _ in sent(group, wire.EndWorker)] == ["a"]
    assert isinstance(group.state, Idle)
    assert not group.training


def test_a_start_whose_workers_are_all_gone_meets_at_a_new_address():
    """The loss of a node that it had left ends those that come up: what the first of them had said is void."""
    group = running("a", "b")
    group.hear(wire.WorkerDown(worker_id=next(iter(group.workers)), code=-9), 1.0)
    group.hear(wire.WorkerDown(worker_id=next(iter(group.workers)), code=-9), 1.0)
    group.tick(2.0)
    come(group, 2.0)
    assert isinstance(group.state, Starting)
    group.node_lost("z", 3.0)
    for worker_id in list(group.workers):
        group.hear(wire.WorkerDown(worker_id=worker_id, code=-9), 3.0)
    ((_, start),) = sent(group, wire.StartWorker)[-1:]
    assert start.offers
    assert len(group.workers) == 1


def test_words_of_a_session_are_not_for_a_script_that_was_said_to_open_none():
    group = running("a")
    (worker_id,) = group.workers
    group.hear(wire.Finished(worker_id=worker_id, step=5, done=5.0), 1.0)
    group.hear(wire.WorkerDown(worker_id=worker_id, code=1, error="boom"), 1.0)
    assert outcomes(group) == [Outcome.RESTARTED]


def test_one_that_opens_a_session_is_ended_and_told_as_such_when_the_last_has_gone():
    group = running("a", "b")
    first, last = list(group.workers)
    group.hear(wire.Ready(worker_id=first), 1.0)
    group.hear(wire.Ready(worker_id=last), 1.1)
    assert [end.grace_s for _, end in sent(group, wire.EndWorker)] == [0.0, 0.0], (
        "each once, and nothing is to be saved"
    )
    group.hear(wire.WorkerDown(worker_id=first, code=-9), 2.0)
    assert not group.idle, "nobody starts it again as what it is not"
    assert outcomes(group) == []
    group.hear(wire.WorkerDown(worker_id=last, code=-9), 3.0)
    assert outcomes(group) == [Outcome.SESSION]


def test_the_first_to_start_may_open_a_session_before_the_others_are_there():
    group = a_group()
    group.move(1, (("a", 1), ("b", 1)), 0, 0.0)
    ((_, start),) = sent(group, wire.StartWorker)
    group.hear(wire.Ready(worker_id=start.worker_id), 1.0)
    group.hear(wire.WorkerDown(worker_id=start.worker_id, code=-9), 2.0)
    assert outcomes(group) == [Outcome.SESSION]
    assert sent(group, wire.StartWorker) == []


def test_a_stop_that_was_ordered_comes_before_a_session():
    group = running("a")
    (worker,) = group.workers
    group.stop(2, resumable=True, wall_s=1.0)
    group.hear(wire.Ready(worker_id=worker), 1.1)
    group.hear(wire.WorkerDown(worker_id=worker, code=-15), 2.0)
    assert outcomes(group) == [Outcome.STOPPED]
