"""What each unit takes of a micro-batch: timed on the fly, so that grids that were never tried can be told.

The forward of a unit is the time from where it is entered to where the next one is. Of the backward only the whole is
seen: it is shared out as the forward was.
"""

from __future__ import annotations

from sublet.machine.wall import WALL
from sublet.train.grid.stages import Part

__all__ = ["UnitTimes"]


class UnitTimes:
    """Of one worker, in one pass over all atoms: before the blocks, each block, after them."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self.begin()

    def begin(self) -> None:
        """Another pass."""
        self._forward_s = [0.0] * (self._blocks + 2)
        self.backward_s, self._atoms = 0.0, 0
        self._unit, self._since_s = -1, 0.0  # -1: nothing runs forward

    def begin_atom(self) -> None:
        """The forward of one atom begins."""
        self._unit, self._since_s = 0, WALL.monotonic()

    def end_atom(self) -> None:
        """And ends, however it does."""
        self.enter(-1)
        self._unit, self._atoms = -1, self._atoms + 1

    def enter(self, block: int) -> None:
        """What follows is of this block; one more than the last is what comes after all."""
        if self._unit >= 0:
            now_s = WALL.monotonic()
            self._forward_s[self._unit] += now_s - self._since_s
            self._unit, self._since_s = block + 1, now_s

    def of(self, part: Part) -> tuple[float, ...]:
        """Of one atom, by the mean; 0 where it is others': what we do there is to pass it over."""
        last = self._blocks + 1
        own = [0] * part.first + [*range(part.low + 1, part.high + 1)] + [last] * part.last
        whole_s = sum(self._forward_s[unit] for unit in own)
        if not self._atoms or whole_s <= 0.0:
            return ()
        share = (1.0 + self.backward_s / whole_s) / self._atoms
        return tuple(self._forward_s[unit] * share if unit in own else 0.0 for unit in range(last + 1))
