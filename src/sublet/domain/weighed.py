"""The alternatives that a policy weighed for one job before it chose: for people to read, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sublet.domain.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """One shape, to the end of the job. `usd` is what was compared: the sum of the others."""

    shape: Shape
    hours: float  # starts, restarts and expected reclaims included
    usd_per_h: float  # rent, with its part of what is left over on its last node
    rent_usd: float
    time_usd: float  # its hours at what an hour of this job is worth
    scarce_usd: float  # the surcharge of a pool that is short
    other_usd: float  # what else counted: nodes that boot meanwhile, doubt in what is believed of speeds
    usd: float
    obtainable: bool  # whether so many GPUs of the pool could be held then


class Weighing(Protocol):
    """Everything that was weighed for a job in one decision; worked out on request."""

    @property
    def hour_usd(self) -> float | None:
        """The worth of an hour of this job; None if more than any rent: then only hours were compared."""
        ...

    def rows(self) -> Sequence[Weighed]:
        """Every shape that it can run in, the least first by what was compared."""
        ...
