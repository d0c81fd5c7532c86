"""Faults of the processes that train with a session, and of their checkpoints."""

from __future__ import annotations

import random

from sublet_lab.world.node import WorldNode
from sublet_lab.world.stage import Kind, Stage
from sublet_lab.world.worker import SdkWorker

AGAIN_S = 2.0
SIGKILL = -9  # as an exit code


def trainers_of(stage: Stage) -> list[SdkWorker]:
    """Processes with a session."""
    nodes = [instance.node for instance in stage.cloud.alive()]
    found = [worker for node in nodes if isinstance(node, WorldNode) for worker in node.workers]
    return [worker for worker in found if isinstance(worker, SdkWorker)]


def _short_of_memory(stage: Stage, rng: random.Random) -> bool:
    """A step does not fit: in the session, whose process survives, or in the script's own code."""
    workers = [worker for worker in trainers_of(stage) if worker.trains]
    if not workers:
        return False
    victim = rng.choice(workers)
    stage.victim = victim.id
    return victim.run_short(ends=rng.random() < 0.5)


def _lost_power(stage: Stage, rng: random.Random) -> bool:
    """The disk with the checkpoints comes back with no more than it must have kept, and perhaps with more."""
    del rng
    if not (workers := trainers_of(stage)):
        return False
    return workers[0].meetings.storage.cut_power()


def _rot(stage: Stage, rng: random.Random) -> None:
    """A bit of the newest checkpoint of a job is another one now, and its workers die, so that the next read it.

    There must be one before it: it is waited for. The effect is that the damage was found.
    """
    found = stage.later("rot")

    def strike() -> None:
        for worker in rng.sample(trainers := trainers_of(stage), len(trainers)):
            if worker.meetings.storage.rot(worker.job_id, stage.truth.jobs[worker.job_id], rng, found):
                for other in trainers:
                    if other.job_id == worker.job_id:
                        other.exit(SIGKILL)
                return
        if not stage.calm:
            stage.world.after(AGAIN_S, strike)

    strike()


WORKER_KINDS: dict[str, Kind] = {
    "short_of_memory": _short_of_memory,
    "lost_power": _lost_power,
    "rot": _rot,
}
