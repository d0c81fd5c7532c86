"""Who is at a meeting, with what, and for what: one table, which all add up, each with a row of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

import torch

from sublet.train.grid.meeting import NOTHING, Standing
from sublet.train.grid.mesh import Mesh

__all__ = ["Attendance", "attend"]

FACTS = 3  # of a worker, before its units: steps applied, step pending, whether it is new to its loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """By number at the meeting, the same for all."""

    standings: list[Standing]
    owned: list[frozenset[int]]  # units of the seat to come
    keeps: list[frozenset[int]]  # units to be kept for others
    new: list[bool]  # has a state of others, and makes its first step with them yet

    @property
    def top(self) -> int:
        """Most steps that anybody has applied."""
        return max(each.applied for each in self.standings)

    @property
    def anew(self) -> bool:
        """Nobody has anything."""
        return self.top == NOTHING


def attend(
    mesh: Mesh, standing: Standing, own: Collection[int], kept: Collection[int], units: int, *, new: bool
) -> Attendance:
    """We, with what we bring, are to have and are to keep; of `units` in all. Broken."""
    facts = [[int(unit in each) for unit in range(units)] for each in (standing.units, own, kept)]
    row = [standing.applied, standing.pending, int(new), *chain(*facts)]
    table = torch.zeros(mesh.world, len(row), dtype=torch.int64)
    table[mesh.rank] = torch.tensor(row)
    mesh.sum(table, range(mesh.world))
    rows = table.tolist()
    held, owned, keeps = (
        [frozenset(unit for unit in range(units) if each[FACTS + at * units + unit]) for each in rows]
        for at in range(3)
    )
    return Attendance(
        standings=[Standing(applied=each[0], pending=each[1], units=has) for each, has in zip(rows, held, strict=True)],
        owned=owned,
        keeps=keeps,
        new=[bool(each[2]) for each in rows],
    )
