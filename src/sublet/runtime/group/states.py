"""States of a group, as values: each holds what is known there and nowhere else. Times are wall time.

    elastic      Idle -> Gathering -> Forming -> Stepping -> Concluding -> Over
    restarting   Idle -> Starting  ------------> Running  -----------> Over

From everywhere a failure leads to Resting and back, an order of the kernel to Stopping and then to Idle or Over, and
the loss of a node to Idle, until the kernel has said where to go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sublet.runtime.group.failures import Ended, Failure, Fault
from sublet.runtime.group.workers import Worker
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.messages import Joined, Stepped


@dataclass(frozen=True, slots=True)
class Idle:
    """No order, or the last one is void since a node was lost: the kernel will give another."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Resting:
    """It failed, and starts again after a pause."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """All are to leave."""

    since_s: float
    resumable: bool  # a job that will not be resumed ends without saving
    saver: str | None = None  # the worker that saves on the way out; "" = rank 0; None = none was asked to


@dataclass(frozen=True, slots=True)
class Over:
    """The kernel has heard how it ended, or is about to."""

    since_s: float


# ---------------------------------------------------------------------------------------- scripts with the SDK


@dataclass(frozen=True, slots=True)
class Cry:
    """The first word of a member that its round fell apart."""

    why: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint that is awaited: of this step, or a later one."""

    step: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Gathering:
    """Newcomers are on their way; members train on, unless the group is broken."""

    since_s: float
    saving: Saving | None = None  # before an untried worker count: it may cost all that is not in a checkpoint
    safe: bool = False  # no checkpoint is awaited any more


@dataclass(frozen=True, slots=True)
class Forming:
    """Everybody knows the rank that it has from now on, and they meet."""

    since_s: float
    cry: Cry | None = None
    interim: bool = False  # without those that are still on their way; it gathers again at once


@dataclass(frozen=True, slots=True)
class Stepping:
    """It makes steps."""

    since_s: float
    progress_s: float  # the last sign of it
    cry: Cry | None = None
    adopted: bool = False  # it trained before this controller was there, and has not been heard since


@dataclass(frozen=True, slots=True)
class Concluding:
    """All steps are made; the script does what it does after them."""

    since_s: float


ElasticState = Idle | Gathering | Forming | Stepping | Resting | Stopping | Concluding | Over

# ---------------------------------------------------------------------------------------- scripts without


@dataclass(frozen=True, slots=True)
class Starting:
    """Its old processes end, then its new ones begin: the first before the others, which must know where to meet it."""

    since_s: float
    address: tuple[str, int] | None = None  # where the first is met
    through: int = 0  # workers that have ended well already
    failed: Ended | None = None  # the first that did, until we know why


@dataclass(frozen=True, slots=True)
class Opening:
    """It has opened a session: all end, and start again as a group of one that does."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Running:
    """All its processes do what they do."""

    since_s: float
    through: int = 0
    failed: Ended | None = None


RestartingState = Idle | Starting | Running | Opening | Resting | Stopping | Over


SILENT_S = 60.0  # a group that makes no step, in no script of its own, for so long and for STEPS steps, hangs
FIRST_STEP_S = 300.0  # the same for the first step in a process, which may compile
STEPS = 5.0
FORM_S = 30.0  # from the order to the first joined member, before silence counts as failure
READY_S = 600.0  # from the start of a worker to its session: imports, downloads, data
APART_S = 2.0  # from a member's cry that the group fell apart until we regroup though none is missing
JUDGE_S = 2.0  # one that fails may do so because another is gone, of which we have not heard yet
QUIT_S = 10.0  # from one worker's good end to the others', or it has ended too early
LEAVE_S = 60.0  # for a worker to go when told; then it is killed
PARK_S = 60.0  # survivors without a place save and leave; they would not wait for ever
ADOPTED_S = 5.0  # without a step after the controller came back, until all meet anew
SAVE_S = 60.0  # for a checkpoint before a worker count that was never tried; then it is tried all the same
TAIL_S = 600.0  # for what a script does after its training
COPIES_S = 60.0  # of several workers each at work for itself, until they train as many copies
LOOKED_S = 15.0  # since when a look at a worker says what it does now
WORKS_S = 60.0  # a script without the SDK that runs for so long at a worker count can train at it


def parked_s(spec: JobSpec) -> float:
    """How long survivors stand that have no order; those that wait for another node, for as long as they wait."""
    return max(PARK_S, spec.replace_s) if spec.on_node_loss is OnNodeLoss.REPLACE else PARK_S


def late_starters(launched: Iterable[Worker], wall_s: float) -> list[Worker]:
    """Those that should have opened their session by now."""
    return [worker for worker in launched if wall_s - worker.since_s > READY_S]


def late_start(worker: Worker) -> Failure:
    """Its session did not open."""
    why = f"{worker.id} opened no session within {READY_S:g} s"
    return Failure(fault=Fault.INFRA, why=why, keep=True, unfit=True)


def is_old(cry: Cry | None, wall_s: float) -> bool:
    """A cry is so old that word of a gone worker would have come."""
    return cry is not None and wall_s - cry.at_s > APART_S


def find_unformed(state: Forming, members: list[Worker], spec: JobSpec, wall_s: float) -> str:
    """Why a group that is to meet will not; "" while it may."""
    waited_s = wall_s - state.since_s
    if state.cry is not None and is_old(state.cry, wall_s):
        return state.cry.why or "the group fell apart while it formed"
    if min(waited_s, _unbusy_s(members, wall_s)) > FORM_S or waited_s > _longest_s(FORM_S, spec):
        return f"the group did not form within {waited_s:.0f} s"
    return ""


def find_hang(
    state: Stepping,
    members: list[Worker],
    spec: JobSpec,
    wall_s: float,
    *,
    joined: Joined | None,
    stepped: Stepped | None,
) -> Failure | None:
    """A group with the SDK that makes no step, and is not in its script's own code or is there for too long."""
    first = joined is None or stepped is None or stepped.step <= joined.step
    limit_s = FIRST_STEP_S if first or stepped is None else max(SILENT_S, STEPS * stepped.step_s)
    stood_s = wall_s - state.progress_s
    silent_s = min(stood_s, _unbusy_s(members, wall_s))
    if silent_s > limit_s:
        why = f"no step for {stood_s:.0f} s: it hangs"
        return Failure(fault=Fault.INFRA, why=why, unfit=first, silent_s=silent_s)
    if stood_s > _longest_s(limit_s, spec):
        why = f"no step for {stood_s:.0f} s, though its script does something (training.hang): it hangs"
        return Failure(fault=Fault.INFRA, why=why, unfit=first, silent_s=stood_s)
    return None


def find_silence(members: Iterable[Worker], spec: JobSpec, wall_s: float) -> Failure | None:
    """A script without the SDK of which no worker does anything that its agent can see; all were looked at."""
    silent_s = min((0.0 if w.seen_s is None else w.quiet_s + wall_s - w.seen_s for w in members), default=0.0)
    if silent_s <= spec.hang_s:
        return None
    why = f"no output and no use of a processor for {silent_s:.0f} s: it hangs"
    return Failure(fault=Fault.INFRA, why=why, silent_s=silent_s)


def find_copies(members: list[Worker], spec: JobSpec, wall_s: float) -> Failure | None:
    """Several workers that train without one another, of a script whose text shows no group that they may yet join.

    One whose text does may load and compile for as long as it likes before. Evidence is of each worker, and fresh.
    """
    if spec.joins == "yes" or spec.per_node or len(members) < 2:  # noqa: PLR2004 - one trains no copies
        return None
    for worker in members:
        if worker.alone_s is None or worker.seen_s is None or wall_s - worker.seen_s > LOOKED_S:
            return None
        if worker.seen_s - worker.alone_s < COPIES_S or worker.quiet_s >= COPIES_S:
            return None
    why = (
        f"its {len(members)} workers train {len(members)} copies of the same model: none has joined a process group\n"
        "  next: --workers 1; or call torch.distributed.init_process_group() where there are several, "
        "see guides/run-jobs.md"
    )
    return Failure(fault=Fault.USER, why=why)


def _unbusy_s(members: Iterable[Worker], wall_s: float) -> float:
    """Since when no member said that it is in its script's own code, where it makes no step and hears no order."""
    return wall_s - max((worker.busy_s for worker in members), default=-math.inf)


def _longest_s(limit_s: float, spec: JobSpec) -> float:
    """For which a script may be in its own code, where others get `limit_s`."""
    return max(limit_s, spec.hang_s)
