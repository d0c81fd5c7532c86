"""What can go wrong in the processes that train with a session, and with what they have saved."""

from __future__ import annotations

import random
from collections.abc import Callable

from sublet.testing.world.node import WorldNode
from sublet.testing.world.stage import Stage
from sublet.testing.world.worker import SdkWorker

__all__ = ["WORKER_KINDS"]


def _trainers(stage: Stage) -> list[SdkWorker]:
    nodes = [instance.node for instance in stage.cloud.alive()]
    found = [worker for node in nodes if isinstance(node, WorldNode) for worker in node.workers]
    return [worker for worker in found if isinstance(worker, SdkWorker)]


def _short_of_memory(stage: Stage, dice: random.Random) -> bool:
    """A step does not fit: in the session, whose process survives, or in the script's own code."""
    workers = [worker for worker in _trainers(stage) if worker.trains]
    return bool(workers) and dice.choice(workers).run_short(ends=dice.random() < 0.5)


def _lost_power(stage: Stage, dice: random.Random) -> bool:
    """The disk with the checkpoints comes back with no more than it must have kept, and perhaps with more."""
    del dice
    if not (workers := _trainers(stage)):
        return False
    return workers[0].meetings.storage.cut_power()


def _rot(stage: Stage, dice: random.Random) -> bool:
    """A bit of the newest checkpoint of a job is another one now; there is one before it."""
    workers = _trainers(stage)
    if not workers:
        return False
    worker = dice.choice(workers)
    return worker.meetings.storage.rot(worker.job_id, stage.truth.jobs[worker.job_id], dice)


WORKER_KINDS: dict[str, Callable[[Stage, random.Random], bool]] = {
    "short_of_memory": _short_of_memory,
    "lost_power": _lost_power,
    "rot": _rot,
}
