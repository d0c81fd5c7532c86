"""Orders of the kernel. A closed union: a world that cannot carry one of these out is not a world."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.shape import Placement, Shape
from sublet.domain.timers import Timer
from sublet.errors import InvalidValue, PlanRefused


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Ask the policy about the kernel's snapshot, as fresh as the planner can take it; answer with PlanMade.

    At most one is open at a time: what happens until the answer is seen by it, or by the next one.
    """


@dataclass(frozen=True, slots=True)
class RefusePlan:
    """Nothing of the plan is done: it asks for more than may be had, or names what is not there.

    A fault of the policy. The kernel asks for another plan after a while; a world in which that is of no use raises
    `error`.
    """

    binding: str  # the limit that it is above, or the field that names what is not there
    needed: float | str  # a quantity; or the wrong name
    available: float | str  # a quantity; or the names that there are

    def error(self, now_s: float) -> PlanRefused | InvalidValue:
        """As people are told."""
        if isinstance(self.needed, str) or isinstance(self.available, str):
            return InvalidValue(self.binding, self.needed, str(self.available))
        return PlanRefused(self.binding, needed=self.needed, available=self.available, now_s=now_s)


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start, or resume, on these GPUs; answer with JobStarted."""

    job_id: str
    generation: int
    shape: Shape
    placement: Placement


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """It trains on nodes that will be taken, and will then go on in this shape; there is no answer.

    Work that can be done while training goes on should be. Said again, of another shape, it is about that one.
    """

    job_id: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class ResizeJob:
    """Move to these GPUs, keeping what can be kept; answer with JobResized.

    Copies of a grid sit first in the placement and spares last: where the first ones stay, none need pause.
    """

    job_id: str
    generation: int
    shape: Shape
    placement: Placement


@dataclass(frozen=True, slots=True)
class StopJob:
    """Save and leave all GPUs; answer with JobStopped (`resumable`) or with nothing more (the job has ended)."""

    job_id: str
    generation: int
    resumable: bool = True


@dataclass(frozen=True, slots=True)
class RentNode:
    """Rent one node; answer with NodeReady or RentRefused."""

    node_id: str
    offer_id: str


@dataclass(frozen=True, slots=True)
class ReleaseNode:
    """Give it back; answer with NodeReleased."""

    node_id: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer with TimerFired at `at_s`; a later order for the same timer replaces this one."""

    timer: Timer
    at_s: float


@dataclass(frozen=True, slots=True)
class TellUser:
    """Something a person should know."""

    text: str
    job_id: str = ""


Action = (
    MakePlan | RefusePlan | StartJob | PrepareJob | ResizeJob | StopJob | RentNode | ReleaseNode | SetTimer | TellUser
)
