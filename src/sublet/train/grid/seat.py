"""Where a worker sits: which copy, which part, and who sits around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.domain.cut import borders
from sublet.domain.shape import Grid
from sublet.train.grid.stages import Part

__all__ = ["NO_PLACE", "Seat", "parts_of"]

NO_PLACE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A place of a grid. Its number in the mesh is `copy * parts + part`; those who only keep come behind all places.

    Who keeps parts of others holds their state too, and makes the same update of it.
    """

    copy: int
    part: int
    copies: int
    parts: tuple[Part, ...]
    keeps: tuple[int, ...] = ()
    world: int = 0  # with those who only keep; 0 = there are none

    @classmethod
    def of(cls, rank: int, grid: Grid, blocks: int) -> Seat:
        """That of a number."""
        copy, part = divmod(rank, grid.parts)
        return cls(copy=copy, part=part, copies=grid.copies, parts=parts_of(blocks, grid.parts))

    @property
    def trains(self) -> bool:
        """It has a place."""
        return self.part != NO_PLACE

    @property
    def blocks(self) -> tuple[int, int]:
        """That it runs: from the first up to, not including, the second; none of them is (0, 0)."""
        return (self.parts[self.part].low, self.parts[self.part].high) if self.trains else (0, 0)

    @property
    def rank(self) -> int:
        """In the mesh, of one that has a place."""
        return self.at(self.copy, self.part)

    def at(self, copy: int, part: int) -> int:
        """The number of another seat."""
        return copy * len(self.parts) + part

    def everyone(self) -> range:
        """All who agree on a step: who only gave state at the meeting does not."""
        return range(max(self.world, self.copies * len(self.parts)))

    def same_part(self) -> tuple[int, ...]:
        """All copies of ours: their numbers."""
        return tuple(self.at(copy, self.part) for copy in range(self.copies))

    def same_copy(self, parts: tuple[int, ...]) -> tuple[int, ...]:
        """These parts of our copy."""
        return tuple(self.at(self.copy, part) for part in parts)


def parts_of(blocks: int, parts: int, ends: Sequence[int] = ()) -> tuple[Part, ...]:
    """Blocks in as even ranges as there are, or up to these ends."""
    at = borders(blocks, parts, ends)
    return tuple(
        Part(at[number], at[number + 1], first=number == 0, last=number == parts - 1) for number in range(parts)
    )
