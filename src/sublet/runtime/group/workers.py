"""The workers of a group as data: who is where, which rank each gets, who stays when the group changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sublet.domain.shape import Placement
from sublet.wire import messages as wire

__all__ = ["Worker", "WorkerPhase", "regroups", "silence", "split"]


class WorkerPhase(StrEnum):
    """Where a worker stands."""

    LAUNCHED = "launched"  # its process was ordered or runs; its session has not opened
    READY = "ready"  # waits for a group
    MEMBER = "member"  # trains
    LEAVING = "leaving"  # was told to leave, or to end


@dataclass(slots=True)
class Worker:
    """One training process."""

    id: str
    node_id: str
    phase: WorkerPhase = WorkerPhase.LAUNCHED
    since_s: float = 0.0  # wall, in this phase
    born_s: float = float("-inf")  # wall, when its start was ordered; long ago for one that was there before us
    rank: int = -1
    step: int = 0
    left: bool = False  # it said Left
    missing_s: float | None = None  # wall, since when its agent knows nothing of it
    start: wire.StartWorker | None = None  # said again to an agent that may not have heard it
    quiet_s: float = 0.0  # wall: how long it neither printed nor used a processor, when its agent last looked
    seen_s: float | None = None  # wall, when that was
    busy_s: float = float("-inf")  # wall, when it last said that it is in its script's own code


def silence(workers: Iterable[Worker], wall_s: float) -> float:
    """Wall seconds for which none of them did anything that their agents can see; 0 while one was not looked at."""
    return min((0.0 if w.seen_s is None else w.quiet_s + wall_s - w.seen_s for w in workers), default=0.0)


def split(workers: Iterable[Worker], placement: Placement) -> tuple[list[Worker], list[Worker]]:
    """Those that fill the placement, the furthest on first, and the rest."""
    room = Counter(dict(placement))
    furthest = {WorkerPhase.MEMBER: 0, WorkerPhase.READY: 1}
    staying, leaving = [], []
    for worker in sorted(workers, key=lambda w: (furthest.get(w.phase, 2), w.rank)):
        if room[worker.node_id] > 0:
            room[worker.node_id] -= 1
            staying.append(worker)
        else:
            leaving.append(worker)
    return staying, leaving


def regroups(staying: Iterable[Worker], generation: int, batch: int, *, broken: bool) -> Iterator[wire.Regroup]:
    """An order for each; it takes its new rank here. Those who have made steps come first, so that rank 0 has."""
    members = sorted(staying, key=lambda w: (w.phase is not WorkerPhase.MEMBER, -w.step, w.rank))
    nodes = list(dict.fromkeys(worker.node_id for worker in members))
    on_node = Counter(worker.node_id for worker in members)
    seen = Counter[str]()
    for rank, worker in enumerate(members):
        worker.rank = rank
        yield wire.Regroup(
            worker_id=worker.id,
            generation=generation,
            rank=rank,
            world=len(members),
            local_rank=seen[worker.node_id],
            local_world=on_node[worker.node_id],
            node_rank=nodes.index(worker.node_id),
            nodes=len(nodes),
            batch=batch,
            broken=broken,
        )
        seen[worker.node_id] += 1
