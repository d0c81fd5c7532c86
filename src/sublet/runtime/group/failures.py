"""The blame for a failure, its text, and how often a job may fail before it is given up."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sublet.domain.shape import Placement
from sublet.runtime.group.workers import Worker, WorkerPhase
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.wire.messages import EXIT_LEFT, EXIT_LOST, EXIT_MEMORY

TRIES = 2  # of a group to form at a worker count, before it is taken for one that never will


class WorkerCounts:
    """The knowledge of one job."""

    def __init__(self) -> None:
        self.worked = 0  # workers with which it last made a step; 0 = it never did
        self.widest = 0  # workers with which it ever did
        self.failures = 0  # in a row, without a step, under this order
        self.micro_batch = 0  # most samples of a worker at a time, as more did not fit; 0 = as the script has it

    def facts(self) -> dict[str, int]:
        """Facts that the next controller must find again: where it can go back to."""
        found = {"worked": self.worked, "widest": self.widest}
        return found | {"micro_batch": self.micro_batch} if self.micro_batch else found

    def restore(self, facts: Mapping[str, int]) -> None:
        """The inverse of `facts`; nothing is known of a job whose facts do not say."""
        self.worked, self.widest = facts.get("worked", 0), facts.get("widest", 0)
        self.micro_batch = facts.get("micro_batch", 0)

    def begin_order(self) -> None:
        """A new order: whatever failed before had other reasons."""
        self.failures = 0

    def note_step(self, width: int) -> None:
        """It trains."""
        self.worked, self.failures = width, 0
        self.widest = max(self.widest, width)

    def note_short(self, micro_batch: int) -> bool:
        """More than that did not fit; whether that is news."""
        if micro_batch < 1 or 0 < self.micro_batch <= micro_batch:
            return False
        self.micro_batch = micro_batch
        return True

    def back_from(self, width: int, spec: JobSpec, *, crashed: bool) -> int | None:
        """`width` failed before its first step: the worker count to go back to, None = try again.

        A script that crashes (`crashed`) is tried no narrower than it is known to work: it may just be wrong. A group
        that does not form may do so with fewer, which have nothing to exchange.
        """
        self.failures += 1
        narrow = self.worked or (0 if crashed else spec.least_workers)
        if not 0 < narrow < width or (self.failures < TRIES and not crashed):
            return None
        return narrow

    def last_resort(self, width: int, spec: JobSpec) -> int | None:
        """Its group forms no more at `width`, where it did: the worker count to try before it is given up."""
        narrow = spec.least_workers
        return narrow if self.failures >= TRIES and narrow < width else None


def widest_below(spec: JobSpec, width: int | None, back_to: int | None = None) -> int:
    """The widest that its owner allows, below `width` if there is such a one; if not, where it went `back_to`."""
    if width is None or width <= spec.least_workers:
        return (width and back_to) or spec.max_workers
    return max((size for size in spec.sizes if size < width), default=min(spec.max_workers, width - 1))


def narrow_placement(placement: Placement, width: int, workers: Iterable[Worker]) -> Placement:
    """As much of the placement as `width` workers need, first where the workers with the most steps are."""
    steps: dict[str, int] = {}
    for worker in workers:
        steps[worker.node_id] = max(worker.step, steps.get(worker.node_id, -1))
    left, found = width, []
    for node_id, gpus in sorted(placement, key=lambda part: -steps.get(part[0], -1)):
        if left > 0:
            found.append((node_id, min(gpus, left)))
            left -= gpus
    return tuple(found)


SHELL = 128  # a shell says 128 + n of a command that signal n ended
OWN_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})
FORGIVEN_S = 600.0  # wall: training for so long makes up for failures without blame
BACK_OFF_S = 0.5  # wall, before the first retry, doubled at each further one
LONGEST_BACK_OFF_S = 60.0


class Fault(StrEnum):
    """The blame for the end of a worker."""

    USER = "user"
    INFRA = "infra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a group cannot go on as it is."""

    fault: Fault
    why: str
    code: int | None = None  # of the process that ended, if one did
    keep: bool = False  # the survivors go on with their state; otherwise all are started anew
    unfit: bool = False  # it has no blame but, perhaps, the worker count
    silent_s: float = 0.0  # wall: it hung for so long


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker that ended by itself, and is not judged yet: it may have done so because another is gone."""

    failure: Failure
    at_s: float  # wall


@dataclass(frozen=True, slots=True)
class Unjudged:
    """The first worker of a group that failed, and the first that ended well while others go on."""

    failed: Ended | None = None
    quit: Ended | None = None


class Patience:
    """How long failures without blame are borne: they count in a row, those of the user for ever."""

    def __init__(self) -> None:
        self.in_a_row = 0  # without long enough training between them
        self.failed_s = 0.0  # wall, of the last

    def is_spent(self, failure: Failure, counts: Counter[str], retries: Retries, wall_s: float) -> bool:
        """Count it; True if it was one too many."""
        counts[failure.fault] += 1
        if failure.fault is Fault.USER:
            return retries.user is not None and counts[failure.fault] > retries.user
        trained_s = wall_s - self.failed_s - failure.silent_s
        self.in_a_row = 1 if trained_s > FORGIVEN_S else self.in_a_row + 1
        self.failed_s = wall_s
        return retries.infra is not None and self.in_a_row > retries.infra

    def rests(self, failures: int, wall_s: float) -> bool:
        """Whether the pause after the last of so many failures is not over yet."""
        return self.in_a_row > 0 and wall_s - self.failed_s < back_off_s(failures)

    def forgive(self, failures: int) -> None:
        """So many of the last had a reason that is gone."""
        self.in_a_row -= min(self.in_a_row, failures)


def back_off_s(failures: int) -> float:
    """Wall seconds to wait after so many of them, before the next try."""
    return float(min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2.0 ** min(failures - 1, 30)))


def fault_of(code: int) -> Fault:
    """A signal from outside is no bug of the script; a crash or an exit code of its own is."""
    if code in (EXIT_LEFT, EXIT_LOST, EXIT_MEMORY, SHELL + signal.SIGKILL, SHELL + signal.SIGTERM):
        return Fault.INFRA
    return Fault.INFRA if code < 0 and -code not in OWN_FAULTS else Fault.USER


def is_kill(code: int | None) -> bool:
    """A signal from outside, of which the process knows nothing."""
    return code is not None and (code < 0 or code > SHELL) and fault_of(code) is Fault.INFRA


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


def how_it_ended(worker_id: str, code: int) -> str:
    """The end of a worker that was not told to go."""
    if code == 0:
        return f"{worker_id} ended with exit code 0 while the others train on"
    return f"{worker_id} was ended by {ending_of(code)}" if code < 0 else f"{worker_id} ended with {ending_of(code)}"
