"""Parts that workers keep for others: filled while the grid trains, and then brought up to date with every step.

A keeper gets the summed gradient of a unit before the agreement, and makes the same update. What it lacks comes at
boundaries between steps, a little at each: never in a meeting, for which everybody waits. Who sends what to whom
follows from what all have heard at the meeting, or, where a worker is told later to keep more (`Keep`), from a table
that all add up after the step in whose agreement it has said so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch

from sublet.train.grid.holdings import Holdings
from sublet.train.grid.mesh import Mesh

__all__ = ["Keeping"]

SUMS, FILLS = 5 << 20, 6 << 20  # tags of messages, far from those of moves and pipelines
AT_ONCE_BYTES = 64 << 20  # at a boundary: a fraction of a second on 10 Gb/s; one unit at least


@dataclass(frozen=True, slots=True)
class Stream:
    """A unit from who trains it, the first of them, to one who keeps it."""

    unit: int
    giver: int
    keeper: int


class Keeping:
    """Of one worker. All of a grid have the same streams, in the same order."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._givers: dict[int, int] = {}  # who trains a unit
        self._filled: list[Stream] = []
        self._lacking: list[Stream] = []
        self._asked: frozenset[int] = frozenset()
        self._began = 0

    @property
    def units(self) -> set[int]:
        """That somebody keeps, or will: their sums are not ours alone."""
        return {each.unit for each in (*self._filled, *self._lacking)}

    @property
    def asks(self) -> bool:
        """We were told to keep more, and the others do not know yet."""
        return bool(self._asked)

    def begin(
        self, owned: Sequence[AbstractSet[int]], keeps: Sequence[AbstractSet[int]], have: Sequence[AbstractSet[int]]
    ) -> None:
        """All have met: who trains what, who is to keep what, and who has what by now."""
        self._givers = {unit: rank for rank in reversed(range(len(owned))) for unit in owned[rank]}
        wanted = [Stream(unit, self._givers[unit], keeper) for keeper, units in enumerate(keeps) for unit in units]
        wanted.sort(key=lambda each: (each.unit, each.keeper))
        self._filled = [each for each in wanted if each.unit in have[each.keeper]]
        self._lacking = [each for each in wanted if each.unit not in have[each.keeper]]
        self._asked, self._began = frozenset(), -1

    def ask(self, units: Collection[int]) -> None:
        """Keep these too, of what we do not hold."""
        known = {each.unit for each in self._lacking}
        self._asked = frozenset(unit for unit in units if unit not in self._holdings.arenas and unit not in known)

    def agree(self, mesh: Mesh, everyone: Sequence[int], units: int) -> None:
        """Somebody has asked: all learn who, and for what."""
        table = torch.zeros(len(everyone), units, dtype=torch.int64)
        table[mesh.rank, sorted(self._asked)] = 1
        mesh.sum(table, everyone)
        known = {(each.unit, each.keeper) for each in (*self._filled, *self._lacking)}
        more = [
            Stream(unit, self._givers[unit], keeper)
            for keeper, row in enumerate(table.tolist())
            for unit, asked in enumerate(row)
            if asked and (unit, keeper) not in known
        ]
        self._lacking += sorted(more, key=lambda each: (each.unit, each.keeper))
        self._asked = frozenset()

    def fill(self, mesh: Mesh, applied: int) -> bool:
        """At a boundary: the next units to those who lack them, once a step has been made; whether we got any."""
        if self._began < 0:
            self._began = applied
        if not self._lacking or applied <= self._began:
            return False
        sizes = [self._holdings.size_bytes(each.unit, stepped=True) for each in self._lacking]
        count = max(1, sum(sum(sizes[: at + 1]) <= AT_ONCE_BYTES for at in range(len(sizes))))
        now, self._lacking = self._lacking[:count], self._lacking[count:]
        came = dict[int, torch.Tensor]()
        for each in now:
            if each.giver == mesh.rank:
                mesh.hand(self._holdings.sent(each.unit), each.keeper, FILLS + each.unit)
        for each in now:
            if each.keeper == mesh.rank:
                came[each.unit] = self._holdings.expect(each.unit, stepped=True)
                mesh.take(came[each.unit], each.giver, FILLS + each.unit)
        mesh.settle()
        if came:
            self._holdings.take(came, {*self._holdings.arenas, *came}, stepped=True)
        self._filled += now
        return bool(came)

    def stream(self, mesh: Mesh) -> None:
        """Sums to those who keep them: they make the same update."""
        for each in self._filled:
            if mesh.rank == each.giver:
                for gradient in self._holdings.arenas[each.unit].sums():
                    mesh.send(gradient, each.keeper, SUMS + each.unit)
            elif mesh.rank == each.keeper:
                for gradient in self._holdings.arenas[each.unit].sums():
                    mesh.receive(gradient, each.giver, SUMS + each.unit)
        mesh.settle()
