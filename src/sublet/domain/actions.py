"""What the kernel orders. A closed union: a world that cannot carry one of these out is not a world."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.shape import Placement, Shape

__all__ = [
    "Action",
    "MakePlan",
    "ReleaseNode",
    "RentNode",
    "ResizeJob",
    "SetTimer",
    "StartJob",
    "StopJob",
    "TellUser",
]


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Ask the policy about the kernel's snapshot, as fresh as the planner can take it; answer with PlanMade.

    At most one is open at a time: what happens until the answer is seen by it, or by the next one.
    """


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start, or resume, on these GPUs; answer with JobStarted."""

    job_id: str
    generation: int
    shape: Shape
    placement: Placement


@dataclass(frozen=True, slots=True)
class ResizeJob:
    """Move to these GPUs, keeping what can be kept; answer with JobResized."""

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

    timer: str
    at_s: float


@dataclass(frozen=True, slots=True)
class TellUser:
    """Something a person should know."""

    text: str
    job_id: str = ""


Action = MakePlan | StartJob | ResizeJob | StopJob | RentNode | ReleaseNode | SetTimer | TellUser
