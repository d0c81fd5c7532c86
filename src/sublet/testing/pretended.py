"""The nodes and workers of a cloud in memory: what they are, and what they say as they meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sublet.perf.live_grids import GUESSED_ATOMS, pipeline_gain
from sublet.wire import messages as wire
from sublet.wire.messages import Profile

__all__ = ["Node", "Training", "Worker", "gain", "meet", "saved"]


@dataclass
class Worker:
    """A process that is none."""

    id: str
    job_id: str
    node_id: str
    order: wire.Regroup | None = None
    step: int = -1  # -1 = it has no state
    holds: tuple[int, frozenset[int]] = (0, frozenset())  # of so many parts, these


@dataclass
class Node:
    """A rented one."""

    id: str
    offer_id: str
    token: str
    workers: dict[str, Worker] = field(default_factory=dict)


@dataclass
class Training:
    """A pretended job."""

    steps: int = 10_000
    step_s: float = 0.05  # wall, of one worker
    saved: int = 0  # the step of its last checkpoint
    ends_with: int | None = None  # exit code instead of a session
    lost: int = 0  # steps made twice
    batches: tuple[int, int, int] | None = None  # initial, least and most: it measures itself, and a `step` is a sample
    noise: float = 1000.0  # of its gradient, in samples
    batch: int = 0  # that it trains with
    profiled_s: float = -1.0  # when it last told
    blocks: tuple[int, ...] = ()  # bytes of each, of a model that can be cut
    device_bytes: int = 0  # memory of a GPU, as its sessions tell; 0 = they do not
    restored: int = 0  # grids that lost a part

    def profiled(self, order: wire.Regroup | None, workers: int) -> tuple[int, Profile]:
        """Its batch as ordered, and a step of 20 ms and 1 ms a sample, 10 ms to exchange gradients, 5 ms to update."""
        initial, least, most = self.batches or (1, 1, 1)
        self.batch = min(max((order.batch if order is not None else 0) or initial, least), most)
        samples, wait_s = max(1, self.batch // workers), 0.01 if workers > 1 else 0.0
        compute_s = 0.02 + 0.001 * samples
        profile = Profile(samples=samples, compute_s=compute_s, wait_s=wait_s, step_s=compute_s + wait_s + 0.005)
        return self.batch, replace(profile, batch_initial=initial, batch_low=least, batch_high=most)


def saved(worker: Worker) -> wire.Saved:
    """The worker's message about its checkpoint."""
    return wire.Saved(
        worker_id=worker.id, step=worker.step, done=float(worker.step), seconds=0.0, blocked_s=0.0, size_bytes=1
    )


def gain(members: Mapping[str, Worker]) -> float:
    """How much faster than one they are."""
    order = next(iter(members.values())).order
    if order is None or not order.copies:
        return float(len(members))
    return pipeline_gain(order.copies, order.parts, GUESSED_ATOMS)


def meet(members: dict[str, Worker], training: Training) -> Iterator[tuple[Worker, wire.FromWorkerMessage]]:
    """All workers that were to meet are there: the message of each. A worker that only gives is no member any more."""
    everyone = list(members.values())
    top = max(member.step for member in everyone)
    orders = {member.id: member.order for member in everyone if member.order is not None}
    parts = max(order.parts for order in orders.values())
    if top >= 0 and any(order.copies for order in orders.values()) and not _is_all_there(everyone, top):
        top, training.restored = -1, training.restored + 1
        for member in everyone:
            member.holds = (0, frozenset())
    before, restored = top, top < 0
    if restored:
        top = training.saved
    moved = {member.id: _moved_bytes(member, orders[member.id], training, before) for member in everyone}
    depth = any(member.holds[0] not in (0, parts) for member in everyone)
    kind = "restored" if restored else "depth" if depth else "between" if any(moved.values()) else "within"
    for member in everyone:
        order = orders[member.id]
        if not order.stays:
            del members[member.id]
            left = wire.Left(worker_id=member.id, generation=order.generation, step=top, done=float(top))
            member.step, member.holds, member.order = -1, (0, frozenset()), None
            yield member, left
            continue
        member.step = top
        member.holds = (order.parts, frozenset({order.part, *order.keeps} - {-1}))
        joined = wire.Joined(
            worker_id=member.id,
            generation=order.generation,
            step=top,
            done=float(top),
            work=float(training.steps),
            global_batch=1,
        )
        told = replace(joined, kind=kind, moved_bytes=moved[member.id], state_s=0.01)
        yield member, told if order.copies and top else joined


def _is_all_there(everyone: list[Worker], top: int) -> bool:
    """Every part of the grid before is held by a worker that has made all steps."""
    newest = [member.holds for member in everyone if member.step == top and member.holds[0]]
    return bool(newest) and len(frozenset().union(*(held for _, held in newest))) == newest[0][0]


def _moved_bytes(member: Worker, order: wire.Regroup, training: Training, top: int) -> int:
    """That it receives: all of what its place needs, unless it has it. Its kept state comes later, while they train."""
    wanted = {order.part} - {-1} if order.stays else set[int]()
    has = member.holds[1] if member.holds[0] == order.parts and member.step == top else frozenset[int]()
    return len(wanted - has) * (sum(training.blocks) // max(1, order.parts))
