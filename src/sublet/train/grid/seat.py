"""Where a worker sits: which copy, which part, and who sits around it."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.shape import Grid
from sublet.errors import InvalidValue
from sublet.train.grid.cutting import Part

__all__ = ["Seat", "parts_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A place of a grid. Its number in the mesh is `copy * parts + part`."""

    copy: int
    part: int
    copies: int
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, rank: int, grid: Grid, blocks: int) -> Seat:
        """That of a number."""
        copy, part = divmod(rank, grid.parts)
        return cls(copy=copy, part=part, copies=grid.copies, parts=parts_of(blocks, grid.parts))

    @property
    def rank(self) -> int:
        """In the mesh."""
        return self.at(self.copy, self.part)

    def at(self, copy: int, part: int) -> int:
        """The number of another seat."""
        return copy * len(self.parts) + part

    def everyone(self) -> range:
        """All seats of the grid: who only gave state at the meeting has none."""
        return range(self.copies * len(self.parts))

    def same_part(self) -> tuple[int, ...]:
        """All copies of ours: their numbers."""
        return tuple(self.at(copy, self.part) for copy in range(self.copies))

    def same_copy(self, parts: tuple[int, ...]) -> tuple[int, ...]:
        """These parts of our copy."""
        return tuple(self.at(self.copy, part) for part in parts)


def parts_of(blocks: int, parts: int) -> tuple[Part, ...]:
    """Blocks in as even ranges as there are."""
    if not 1 <= parts <= blocks:
        raise InvalidValue("parts", parts, f"1 to {blocks}: a part has at least one of the {blocks} blocks")
    ends = [number * blocks // parts for number in range(parts + 1)]
    return tuple(
        Part(ends[number], ends[number + 1], first=number == 0, last=number == parts - 1) for number in range(parts)
    )
