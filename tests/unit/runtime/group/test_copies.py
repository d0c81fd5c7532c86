"""Several workers of a script without the SDK that train without one another are ended, with the reason."""

from __future__ import annotations

import pytest

from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.group.states import Over, Running
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from tests.rigs.groups import sent


def running(*nodes, **facts):
    spec = JobSpec(**{"name": "job", "argv": ("x",), "cwd": "/", "max_workers": 4, "sdk": False, **facts})
    group = build_group("job-1", spec, log_of=str, env=dict, host_of=lambda node: node)
    group.move(1, tuple((node, 1) for node in nodes), 0, 0.0)
    for _ in range(2):
        for node_id, start in sent(group, wire.StartWorker):
            meeting = {"host": node_id, "port": 29500} if start.offers else {}
            group.hear(wire.WorkerUp(worker_id=start.worker_id, pid=1, **meeting), 0.0)
    assert isinstance(group.state, Running)
    group.news.clear()
    return group


def look(group, at_s, **facts):
    """Agents look at all of its workers; `facts` by worker, in the order of their ranks."""
    for number, worker_id in enumerate(list(group.workers)):
        own = {name: values[number] for name, values in facts.items()}
        group.hear(wire.WorkerSeen(worker_id=worker_id, **own), at_s)
    group.tick(at_s)


def looks(group, seconds, since_s=0, **facts):
    for at_s in range(since_s, since_s + seconds + 1, 5):
        look(group, float(at_s), **facts)


def test_workers_that_each_train_for_themselves_for_a_minute_are_ended_at_once_with_the_reason():
    group = running("a", "b", "c")
    looks(group, 55, alone=[True] * 3)
    assert not group.news
    look(group, 60.0, alone=[True] * 3)
    (news,) = group.news
    assert (news.outcome, isinstance(group.state, Over)) == (Outcome.FAILED, True)
    assert news.why.startswith("its 3 workers train 3 copies of the same model: none has joined a process group")
    assert "next: --workers 1; or call torch.distributed.init_process_group()" in news.why
    assert [end.grace_s for _, end in sent(group, wire.EndWorker)] == [0.0] * 3, "no try more"


def test_what_trained_at_one_worker_is_not_gone_back_to():
    group = running("a", "b")
    group.widths.note_step(1)
    looks(group, 60, alone=[True, True])
    assert [news.outcome for news in group.news] == [Outcome.FAILED]


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        ({"joins": "yes"}, {"alone": [True, True]}),  # it may load and compile for as long as it likes
        ({}, {"alone": [True, False]}),  # one of them could be met
        ({}, {"alone": [True, True], "quiet_s": [0.0, 100.0]}),  # one waits
        ({"per_node": 1, "min_workers": 2, "max_workers": 2}, {"alone": [True, True]}),
    ],
)
def test_nothing_less_will_do(spec, facts):
    group = running("a", "b", **spec)
    looks(group, 300, **facts)
    assert not group.news


def test_a_worker_alone_trains_the_model():
    group = running("a")
    looks(group, 300, alone=[True])
    assert not group.news


def test_a_minute_counts_from_when_it_was_last_seen_otherwise_and_only_as_long_as_it_is_seen():
    group = running("a", "b")
    looks(group, 50, alone=[True, True])
    look(group, 55.0, alone=[True, False])
    looks(group, 55, since_s=60, alone=[True, True])
    group.tick(300.0)
    assert not group.news, "what they do since nobody knows"


def test_what_was_seen_of_one_long_ago_says_nothing_of_all():
    group = running("a", "b")
    looks(group, 60, alone=[True, False])
    second = list(group.workers)[1]
    for at_s in range(65, 200, 5):  # the agent of the first has fallen silent
        group.hear(wire.WorkerSeen(worker_id=second, alone=True), float(at_s))
        group.tick(float(at_s))
    assert not group.news
