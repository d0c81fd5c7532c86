"""What owners are told with a plan: put into words when it is read, as most of it is not, being told already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sublet.domain.shape import Shape

__all__ = ["Late", "Told"]


class Late(NamedTuple):
    """A deadline that no shape keeps, and the fastest of them."""

    fastest: Shape
    hours: float
    cost: float  # USD, with its time as USD
    value_of_time: float
    left_h: float

    def __str__(self) -> str:
        usd = self.cost - self.hours * self.value_of_time
        return (
            f"its deadline in {self.left_h:,.2f} h cannot be met: the fastest way, {self.fastest}, takes "
            f"{self.hours:,.2f} h with its start; a deadline {self.hours:,.2f} h from now could be, for about "
            f"USD {usd:,.2f}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Told(Mapping[str, str]):
    """By job; equal to any other mapping of the same words."""

    notes: Mapping[str, str | Late]

    def __getitem__(self, job_id: str) -> str:
        return str(self.notes[job_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self.notes)

    def __len__(self) -> int:
        return len(self.notes)

    def __repr__(self) -> str:
        return repr(dict(self))
