"""The workers of a group as data: who is where, which rank each gets, who stays when the group changes."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sublet.domain.shape import Placement
from sublet.wire import messages as wire

__all__ = [
    "LEFT_ON_ORDER",
    "Fault",
    "Worker",
    "WorkerPhase",
    "ending_of",
    "fault_of",
    "how_it_stopped_short",
    "regroups",
    "silence",
    "split",
]

LEFT_ON_ORDER = 83  # exit code of a worker that left as told
NOBODY_CAME = 75  # exit code of a worker that heard no order for too long
SHELL = 128  # a shell says 128 + n of a command that signal n ended
OWN_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})


class WorkerPhase(StrEnum):
    """Where a worker stands."""

    LAUNCHED = "launched"  # its process was ordered or runs; its session has not opened
    READY = "ready"  # waits for a group
    MEMBER = "member"  # trains
    LEAVING = "leaving"  # was told to leave, or to end


class Fault(StrEnum):
    """Whose fault it is that a worker ended."""

    USER = "user"
    INFRA = "infra"


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


def fault_of(code: int) -> Fault:
    """A signal from outside is nobody's bug; a crash or an exit code of its own is the script's."""
    if code in (LEFT_ON_ORDER, NOBODY_CAME, SHELL + signal.SIGKILL, SHELL + signal.SIGTERM):
        return Fault.INFRA
    return Fault.INFRA if code < 0 and -code not in OWN_FAULTS else Fault.USER


def ending_of(code: int) -> str:
    """`exit code 3`, or the name of the signal: `SIGKILL`. Negative codes are signals, as in subprocess."""
    number = -code if code < 0 else code - SHELL
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    if code >= 0:
        return f"exit code {code}" + (f", {name} in a shell" if name else "")
    return name or f"signal {number}"


def how_it_stopped_short(phase: WorkerPhase, worker_id: str = "") -> str:
    """Why a script with the SDK has trained nothing, or not all, though a worker (all, without one) ended with 0."""
    who = f"worker {worker_id}" if worker_id else "the script"
    if phase is WorkerPhase.LAUNCHED:
        return (
            f"{who} ended with exit code 0 and never opened its session, so nothing was trained\n"
            "  next: train inside of `with train.session(...) as s:`, or submit with --no-sdk"
        )
    return (
        f"{who} ended with exit code 0 before its session was over\n"
        "  next: let the `with train.session(...)` block come to its end; to stop early, break out of its loops"
    )


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
