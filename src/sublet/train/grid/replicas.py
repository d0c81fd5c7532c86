"""Replicas of parts of other workers: filled while the grid trains, then updated with every step.

A worker with a replica gets the summed gradient of the unit before the agreement, and makes the same update. Missing
units come between steps, a little at each boundary: never in a meeting, for which all wait. Givers and takers follow
from the meeting. If a worker is told later to keep more (`Keep`), it says so in an agreement, and after that step all
add up a table of requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch

from sublet.train.grid.gloo import GlooMesh
from sublet.train.grid.holdings import Holdings

SUMS, FILLS = 5 << 20, 6 << 20  # tags of messages, far from those of moves and pipelines
AT_ONCE_BYTES = 64 << 20  # at a boundary: a fraction of a second on 10 Gb/s; one unit at least


@dataclass(frozen=True, slots=True)
class Stream:
    """A unit from the first worker that trains it to one that has a replica."""

    unit: int
    giver: int
    taker: int


class Replicas:
    """The replicas of one worker. All of a grid have the same streams, in the same order."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._givers: dict[int, int] = {}  # rank that trains a unit
        self._filled: list[Stream] = []
        self._lacking: list[Stream] = []
        self._asked: frozenset[int] = frozenset()
        self._began = 0

    @property
    def units(self) -> set[int]:
        """Units with a replica somewhere, now or soon: their sums are sent."""
        return {each.unit for each in (*self._filled, *self._lacking)}

    @property
    def asks(self) -> bool:
        """Whether we were told to keep more, and the others do not know yet."""
        return bool(self._asked)

    def begin(
        self, owned: Sequence[AbstractSet[int]], keeps: Sequence[AbstractSet[int]], have: Sequence[AbstractSet[int]]
    ) -> None:
        """After a meeting: units that each trains, is to replicate, and has by now."""
        self._givers = {unit: rank for rank in reversed(range(len(owned))) for unit in owned[rank]}
        wanted = [Stream(unit, self._givers[unit], taker) for taker, units in enumerate(keeps) for unit in units]
        wanted.sort(key=lambda each: (each.unit, each.taker))
        self._filled = [each for each in wanted if each.unit in have[each.taker]]
        self._lacking = [each for each in wanted if each.unit not in have[each.taker]]
        self._asked, self._began = frozenset(), -1

    def ask(self, units: Collection[int]) -> None:
        """Replicate these too, unless we hold them."""
        known = {each.unit for each in self._lacking}
        self._asked = frozenset(unit for unit in units if unit not in self._holdings.arenas and unit not in known)

    def agree(self, mesh: GlooMesh, everyone: Sequence[int], units: int) -> None:
        """A worker has asked: all learn which units it wants."""
        table = torch.zeros(len(everyone), units, dtype=torch.int64)
        table[mesh.rank, sorted(self._asked)] = 1
        mesh.sum(table, everyone)
        known = {(each.unit, each.taker) for each in (*self._filled, *self._lacking)}
        more = [
            Stream(unit, self._givers[unit], taker)
            for taker, row in enumerate(table.tolist())
            for unit, asked in enumerate(row)
            if asked and (unit, taker) not in known
        ]
        self._lacking += sorted(more, key=lambda each: (each.unit, each.taker))
        self._asked = frozenset()

    def fill(self, mesh: GlooMesh, applied: int) -> bool:
        """At a boundary after the first step: send the next missing units; whether any came to us."""
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
                mesh.hand(self._holdings.sent(each.unit), each.taker, FILLS + each.unit)
        for each in now:
            if each.taker == mesh.rank:
                came[each.unit] = self._holdings.expect(each.unit, stepped=True)
                mesh.take(came[each.unit], each.giver, FILLS + each.unit)
        mesh.settle()
        if came:
            self._holdings.take(came, {*self._holdings.arenas, *came}, stepped=True)
        self._filled += now
        return bool(came)

    def stream(self, mesh: GlooMesh) -> None:
        """Send sums to replicas, which make the same update."""
        for each in self._filled:
            if mesh.rank == each.giver:
                for gradient in self._holdings.arenas[each.unit].sums():
                    mesh.send(gradient, each.taker, SUMS + each.unit)
            elif mesh.rank == each.taker:
                for gradient in self._holdings.arenas[each.unit].sums():
                    mesh.receive(gradient, each.giver, SUMS + each.unit)
        mesh.settle()
