"""Who is at a meeting, with what, and for what: one table, which all add up, each with a row of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

import torch

from sublet.train.grid.meeting import NOTHING, Standing
from sublet.train.grid.mesh import Mesh

__all__ = ["Attendance", "attend", "heard"]

FACTS = 7  # of a worker, before its units: steps applied, step pending, evaluations since, blocks run and to be run


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """By number at the meeting, the same for all."""

    standings: list[Standing]
    owned: list[frozenset[int]]  # units of the seat to come
    keeps: list[frozenset[int]]  # units to be kept for others
    judged: list[int]  # evaluations since the last step
    ran: list[tuple[int, int]]  # blocks from, and up to, that each has run
    runs: list[tuple[int, int]]  # and is to run

    @property
    def top(self) -> int:
        """Most steps that anybody has applied."""
        return max(each.applied for each in self.standings)

    @property
    def changes(self) -> bool:
        """Somebody is to run blocks that it has not run."""
        return any({*range(*runs)} - {*range(*ran)} for ran, runs in zip(self.ran, self.runs, strict=True))

    @property
    def anew(self) -> bool:
        """Nobody has anything."""
        return self.top == NOTHING


def attend(
    mesh: Mesh,
    standing: Standing,
    judged: int,
    ran: tuple[int, int],
    runs: tuple[int, int],
    own: Collection[int],
    kept: Collection[int],
    units: int,
) -> Attendance:
    """We, with what we bring, are to have and are to keep; of `units` in all. Broken."""
    facts = [[int(unit in each) for unit in range(units)] for each in (standing.units, own, kept)]
    row = [standing.applied, standing.pending, judged, *ran, *runs, *chain(*facts)]
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
        judged=[each[2] for each in rows],
        ran=[(each[3], each[4]) for each in rows],
        runs=[(each[5], each[6]) for each in rows],
    )


def heard(mesh: Mesh, counts: list[int], judged: list[float]) -> list[float]:
    """What evaluations came to that some have ended and others have not; `counts`: how many each has. Broken."""
    if not any(counts):
        return judged
    ours = mesh.rank == counts.index(max(counts))
    said = torch.tensor(judged if ours else [0.0] * max(counts), dtype=torch.float64)
    mesh.sum(said, range(mesh.world))
    found: list[float] = said.tolist()
    return found
