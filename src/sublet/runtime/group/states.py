"""States of a group, as values: each holds what is known there and nowhere else. Times are wall time.

    elastic      Idle -> Gathering -> Forming -> Training -> Ending -> Over
    restarting   Idle -> Starting  ------------> Running  -----------> Over

From everywhere a failure leads to Resting and back, an order of the kernel to Stopping and then to Idle or Over, and
the loss of a node to Idle, until the kernel has said where to go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from sublet.runtime.group.failures import Ended

__all__ = [
    "Cry",
    "ElasticState",
    "Ending",
    "Forming",
    "Gathering",
    "Idle",
    "Opening",
    "Over",
    "RestartingState",
    "Resting",
    "Running",
    "Saving",
    "Starting",
    "Stopping",
    "Training",
]


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
class Training:
    """It makes steps."""

    since_s: float
    progress_s: float  # the last sign of it
    cry: Cry | None = None
    adopted: bool = False  # it trained before this controller was there, and has not been heard since


@dataclass(frozen=True, slots=True)
class Ending:
    """All steps are made; the script does what it does after them."""

    since_s: float


ElasticState = Idle | Gathering | Forming | Training | Resting | Stopping | Ending | Over

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
