"""A group of workers spoken to by hand: what it sends is read from its outbox, and answered as workers would."""

from __future__ import annotations

from sublet.runtime.group.build import build_group
from sublet.runtime.group.protocol import Outcome
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire


def a_group(**facts):
    spec = JobSpec(name="job", argv=("python", "x.py"), cwd="/", max_workers=4, **facts)
    return build_group("job-1", spec, log_of=str, env=dict)


def sent(group, kind):
    """What went out of this kind since the last look."""
    found = [(node_id, message) for node_id, message in group.outbox if isinstance(message, kind)]
    group.outbox[:] = [(node_id, message) for node_id, message in group.outbox if not isinstance(message, kind)]
    return found


def all_ready(group, at_s):
    for _, start in sent(group, wire.StartWorker):
        group.hear(wire.Ready(worker_id=start.worker_id), at_s)


def joined(group, step, at_s):
    first = next(worker for worker in group.workers.values() if worker.rank == 0)
    group.hear(
        wire.Joined(worker_id=first.id, generation=group.round.number, step=step, done=float(step), work=100.0), at_s
    )


def training(*nodes, step=10):
    group = a_group()
    group.move(1, tuple((node, 1) for node in nodes), 0, 0.0)
    all_ready(group, 1.0)
    sent(group, wire.Regroup)
    joined(group, step, 2.0)
    assert [news.outcome for news in group.news] == [Outcome.MOVED]
    group.news.clear()
    return group
