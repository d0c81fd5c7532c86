"""The workers of a group as data: their places, their ranks, and those that stay when the group changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sublet.domain.seats import Place
from sublet.domain.shape import Placement
from sublet.domain.shards import ranges_for
from sublet.runtime.group.rounds import Round
from sublet.wire import messages as wire
from sublet.wire.grids import SHARDS

__all__ = ["Roster", "Worker", "WorkerPhase", "regroup_orders", "split_by_room", "was_started_under"]


class WorkerPhase(StrEnum):
    """The phase of a worker."""

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
    met: bool = False  # it trains in a group, or did before this controller was there; not since it gave its place up
    left: bool = False  # it said Left
    saves: bool = True  # where it stands when it leaves is where the job does; not if it leaves saving to another
    short: bool = False  # its process ends because a step did not fit, and the next will take fewer samples at a time
    adopted: bool = False  # it was there before this controller: that it is a member is a guess
    missing_s: float | None = None  # wall, since when its agent knows nothing of it
    start: wire.StartWorker | None = None  # said again to an agent that may not have heard it
    quiet_s: float = 0.0  # wall: how long it neither printed nor used a processor, when its agent last looked
    seen_s: float | None = None  # wall, when that was
    alone_s: float | None = None  # wall, since when looks find it at work for itself; None = the last one did not
    busy_s: float = float("-inf")  # wall, when it last said that it is in its script's own code
    place: Place | None = None  # in the grid that it was last told of
    keeps: tuple[int, ...] = ()  # parts of it that it holds besides its own
    gives: bool = False  # it has none in the new grid, and takes part in handing over
    gpu: wire.GpuSeen | None = None  # its GPUs, when its agent last looked
    version: int | None = None  # of what it says to others of its grid; None = it was ready before this controller
    meets_to_save: bool = False  # it was told to leave a grid: all such workers save together

    def note_seen(self, seen: wire.WorkerSeen, wall_s: float) -> None:
        """Its agent has looked at it."""
        self.quiet_s, self.seen_s = seen.quiet_s, wall_s
        self.alone_s = (wall_s if self.alone_s is None else self.alone_s) if seen.alone else None

    def note_preparing(self, wall_s: float) -> None:
        """Its node is busy with what it needs: the time that it has to start, or to meet the others, begins anew.

        So does the time that it has to leave: its node is busy with what it has saved.
        """
        self.busy_s = wall_s
        if self.phase in (WorkerPhase.LAUNCHED, WorkerPhase.LEAVING):
            self.since_s = wall_s


class Roster:
    """The workers of one group, and the messages to them that are not sent yet."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.outbox: list[tuple[str, wire.ToAgent]] = []  # (node, message)

    def in_phase(self, *phases: WorkerPhase) -> list[Worker]:
        """Those that stand there."""
        return [worker for worker in self.workers.values() if worker.phase in phases]

    @property
    def members(self) -> list[Worker]:
        """Those that train, or would if none were gone."""
        return self.in_phase(WorkerPhase.MEMBER)

    @property
    def staying(self) -> list[Worker]:
        """Those that were not told to go."""
        return self.in_phase(WorkerPhase.LAUNCHED, WorkerPhase.READY, WorkerPhase.MEMBER)

    def on_node(self, node_id: str) -> list[Worker]:
        """Those on this node."""
        return [worker for worker in self.workers.values() if worker.node_id == node_id]

    def send(self, worker: Worker, message: wire.ToAgent) -> None:
        """Leave a message for its agent."""
        self.outbox.append((worker.node_id, message))

    def enter(self, worker: Worker, phase: WorkerPhase, wall_s: float) -> None:
        """It stands there from now on."""
        worker.phase, worker.since_s = phase, wall_s

    def end(self, worker: Worker, grace_s: float, wall_s: float) -> None:
        """Its process is ended by its agent."""
        self.send(worker, wire.EndWorker(worker_id=worker.id, grace_s=grace_s))
        self.enter(worker, WorkerPhase.LEAVING, wall_s)

    def end_all(self, grace_s: float, wall_s: float) -> None:
        """So are all."""
        for worker in self.workers.values():
            self.end(worker, grace_s, wall_s)

    def tell_to_leave(self, members: Iterable[Worker], generation: int, wall_s: float, *, broken: bool) -> str:
        """They end by themselves at the next step, and rank 0 saves; in a broken group its identity is unknown.

        There the one with the most steps does: the answer is its id, "" for rank 0.
        """
        members = sorted(members, key=lambda w: (-w.step, w.rank))
        for worker in members:
            worker.saves = not broken or worker is members[0]
            leave = wire.Leave(worker_id=worker.id, generation=generation, save=worker.saves, broken=broken)
            self.send(worker, leave)
            self.enter(worker, WorkerPhase.LEAVING, wall_s)
        return members[0].id if broken else ""


def was_started_under(worker: Worker, generation: int) -> bool:
    """By this order of the kernel: its name, JOB.ROUND.NUMBER, says so, under any controller."""
    number = worker.id.split(".")[-2:][0]
    return number.isdecimal() and Round.from_number(int(number)).generation == generation


def split_by_room(workers: Iterable[Worker], placement: Placement) -> tuple[list[Worker], list[Worker]]:
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


def regroup_orders(
    staying: Iterable[Worker],
    generation: int,
    batch: int,
    *,
    broken: bool,
    micro_batch: int = 0,
    in_ranges: bool = False,
) -> Iterator[wire.Regroup]:
    """An order for each; it takes its new rank here. Workers with steps come first, so that rank 0 has some."""
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
            micro_batch=micro_batch,
            cut=SHARDS if in_ranges else "",
            parts=ranges_for(len(members)) if in_ranges else 1,
        )
        seen[worker.node_id] += 1
