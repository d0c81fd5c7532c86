"""What the meetings and the steps of a member come to, and what it needs of the session around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sublet.train.grid.losses import Losses
from sublet.train.grid.meeting import Meeting

__all__ = ["Beside", "Lost", "Met", "Stepped"]


class Lost(Exception):
    """Nobody who is left holds a unit: all go back to a checkpoint."""


class Beside(Protocol):
    """What else training has come to, alike at all members: how far it is, schedules, what the script adds."""

    def tree(self) -> dict[str, Any]:
        """Of now."""

    def take(self, tree: dict[str, Any]) -> None:
        """Another's, with its state."""

    def stepped(self) -> None:
        """A step has been applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What all members have agreed on, and seconds of ours."""

    step: int
    losses: Losses
    norm: float  # of the gradient, before it was clipped; 0 where nothing is
    orders: bool  # somebody has some: all stop here
    idle_s: float
    sum_s: float
    keep_s: float
    agree_s: float
    units: tuple[float, ...] = ()  # s of an atom in each, as `wire.Stepped` has it

    @property
    def loss(self) -> float:
        """The mean over the step."""
        return self.losses.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A meeting, as one of those who were there has it."""

    meeting: Meeting
    moved_bytes: int  # that came to us
    gave_bytes: int
    rolled: bool
    source: str = "peer"  # fresh | peer | checkpoint: where the state came from
    lost: bool = False  # nobody who was left held a unit: all went back
    redone: int = 0  # steps that were lost with it
