"""The places of workers when a grid changes, so that little moves: members, workers that keep parts, givers, spares.

A place goes to a worker that holds what it needs. Survivors stay in their part; at another depth a worker takes the
part that overlaps most with its own. That is an assignment of workers to places by the bytes that each would lack, and
is solved exactly. Two rules come beside it:

- Workers on demand sit in copy 0, as many as there are, before any byte is counted: then they hold one whole copy.
- Copies of a part sit on different nodes, as far as exchanges that move nothing more can bring that about.

A part all of whose copies are on one node has a replica on another node, where there is one. It is held by a worker
that has the part already, else by a worker in no place (a hot spare), else by a member of the next part that keeps
least.

Before announced losses (`kept_ahead`), workers in the mesh are filled while it trains, in this order:

- the seats of the grid to come: its worker keeps what it will need and does not hold;
- a part that no worker would hold: one of those that stay keeps it, a worker in no place first, then the one that keeps
  least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from sublet.domain.seats import Place, borders
from sublet.domain.shape import Grid
from sublet.errors import InvalidValue

Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """The place of each worker, by name. A worker in no place that is not leaving is a spare, if it gives too."""

    members: Mapping[str, Place]
    keepers: Mapping[str, tuple[int, ...]]  # parts that one holds besides its own
    givers: tuple[str, ...]  # they had a place or kept a part, and have and keep none
    spares: tuple[str, ...]

    def staying(self, parts: int) -> tuple[str, ...]:
        """Workers of the new grid by rank: members copy by copy, then those that only keep."""
        seated = sorted(self.members, key=lambda name: self.members[name][0] * parts + self.members[name][1])
        return (*seated, *sorted(name for name in self.keepers if name not in self.members))

    def meeting(self, parts: int) -> tuple[str, ...]:
        """Workers of the old and the new grid: those that stay, then those that only give."""
        return (*self.staying(parts), *self.givers)


def overlaps(params: Sequence[int], old: int, new: int) -> Matrix:
    """Overlap of part i of one depth with part j of another (old x new); () = unknown: all are alike."""
    sizes = np.asarray(params if len(params) >= max(old, new) else [1] * lcm(old, new), dtype=np.int64)
    up_to = np.concatenate(([0], np.cumsum(sizes)))
    bounds = [up_to[list(borders(len(sizes), deep))] for deep in (old, new)]
    starts = np.maximum.outer(bounds[0][:-1], bounds[1][:-1])
    ends = np.minimum.outer(bounds[0][1:], bounds[1][1:])
    return np.asarray(np.maximum(ends - starts, 0), dtype=np.int64)


def seats(
    was: Mapping[str, Place | None],
    old: Grid | None,
    new: Grid,
    params: Sequence[int],
    nodes: Mapping[str, str],
    *,
    kept: Mapping[str, Collection[int]] | None = None,
    leaving: Collection[str] = (),
    steady: Collection[str] = (),
) -> Seats:
    """The places of `new`, and what becomes of every worker (`was`: the place of each in `old`, None = none).

    `params` are bytes of each block, in order; `kept` are parts of the old grid that one held besides its own;
    `leaving` may give and nothing else; `steady` are on demand. InvalidValue if fewer are left than the grid needs.
    """
    names = sorted(name for name in was if name not in leaving)
    if len(names) < new.gpus:
        raise InvalidValue("workers", len(names), f"at least the {new.gpus} of a grid of {new}")
    held = _held(was, old, kept or {})
    lacks = _lacking(names, held, old, new, params)
    table = _Table(names, [nodes[name] for name in names], lacks, new, frozenset(steady))
    table.assign(was if old is not None and old.parts == new.parts else {})
    table.spread()
    members = table.members()
    keepers = _keepers(table, members, new)
    return Seats(
        members=members,
        keepers=keepers,
        givers=tuple(sorted(name for name in held if name not in members and name not in keepers)),
        spares=tuple(name for name in names if name not in members and name not in keepers),
    )


def _held(
    was: Mapping[str, Place | None], old: Grid | None, kept: Mapping[str, Collection[int]]
) -> dict[str, frozenset[int]]:
    """Parts of the old grid, of workers that hold any."""
    if old is None:
        return {}
    found = {name: frozenset(kept.get(name, ())) | ({place[1]} if place else set()) for name, place in was.items()}
    return {name: parts for name, parts in found.items() if parts}


def _lacking(
    names: Sequence[str], held: Mapping[str, frozenset[int]], old: Grid | None, new: Grid, params: Sequence[int]
) -> Matrix:
    """Bytes that each would have to receive in each part (workers x parts)."""
    common = overlaps(params, old.parts if old is not None else new.parts, new.parts)
    has = np.zeros((len(names), len(common)), dtype=np.int64)
    for row, name in enumerate(names):
        has[row, sorted(held.get(name, ()))] = 1
    return np.asarray(common.sum(axis=0)[np.newaxis, :] - has @ common)


class _Table:
    """Workers by their number, each in a place by its number (`copy * parts + part`), or in none (-1)."""

    def __init__(
        self, names: Sequence[str], nodes: Sequence[str], lacks: Matrix, grid: Grid, steady: frozenset[str]
    ) -> None:
        self.names, self.nodes, self.lacks, self.grid = names, nodes, lacks, grid
        self.places: list[int] = [-1] * len(names)
        self._steady = [name in steady for name in names]

    def assign(self, was: Mapping[str, Place | None]) -> None:
        """Workers on demand first, then the fewest bytes; of equals the one that had this very place."""
        from scipy.optimize import linear_sum_assignment  # takes half a second to import, and not all jobs are cut

        grid = self.grid
        cost = np.tile(self.lacks, (1, grid.copies)).astype(float) * (2 * len(self.names))
        for row, name in enumerate(self.names):
            place = was.get(name)
            stays = -1 if place is None or place[0] >= grid.copies else place[0] * grid.parts + place[1]
            cost[row] += 1.0
            if stays >= 0:
                cost[row, stays] -= 1.0
        if any(self._steady):
            cost[~np.asarray(self._steady), : grid.parts] += 1.0 + cost.max() * grid.gpus
        rows, numbers = linear_sum_assignment(cost)
        for seated, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            self.places[seated] = number

    def spread(self) -> None:
        """Exchange places as long as fewer copies of a part share a node, and nothing more is moved."""
        count = Counter((self.nodes[row], self._part(row)) for row in range(len(self.names)) if self.places[row] >= 0)
        while (found := self._exchange(count)) is not None:
            one, other = found
            for row in found:
                count[self.nodes[row], self._part(row)] -= self.places[row] >= 0
            self.places[one], self.places[other] = self.places[other], self.places[one]
            for row in found:
                count[self.nodes[row], self._part(row)] += self.places[row] >= 0

    def members(self) -> dict[str, Place]:
        """By name, in the order of ranks."""
        seated = sorted((place, row) for row, place in enumerate(self.places) if place >= 0)
        return {self.names[row]: divmod(place, self.grid.parts) for place, row in seated}

    def _part(self, row: int) -> int:
        return self.places[row] % self.grid.parts

    def _exchange(self, count: Counter[tuple[str, int]]) -> tuple[int, int] | None:
        for one, place in enumerate(self.places):
            if place < 0 or count[self.nodes[one], self._part(one)] < 2:  # noqa: PLR2004 - it is alone there
                continue
            for other in range(len(self.names)):
                if self._is_free(one, other) and self._gain(one, other, count) > 0:
                    return one, other
        return None

    def _is_free(self, one: int, other: int) -> bool:
        """Nothing more is moved, and as many of copy 0 are on demand."""
        mine, theirs, parts = self.places[one], self.places[other], self.grid.parts
        if self._steady[one] != self._steady[other] and (mine < parts) != (0 <= theirs < parts):
            return False
        before = self.lacks[one, mine % parts] + (self.lacks[other, theirs % parts] if theirs >= 0 else 0)
        after = self.lacks[other, mine % parts] + (self.lacks[one, theirs % parts] if theirs >= 0 else 0)
        return bool(after <= before)

    def _gain(self, one: int, other: int, count: Counter[tuple[str, int]]) -> int:
        """By how many fewer workers would share a node with a copy of their part."""
        here, there, mine = self.nodes[one], self.nodes[other], self._part(one)
        theirs = self._part(other) if self.places[other] >= 0 else None
        if here == there or mine == theirs:
            return 0
        gain = (count[here, mine] > 1) - (count[there, mine] > 0)
        if theirs is not None:
            gain += (count[there, theirs] > 1) - (count[here, theirs] > 0)
        return gain


def _keepers(table: _Table, members: Mapping[str, Place], grid: Grid) -> dict[str, tuple[int, ...]]:
    """Replicas of parts, so that every part is on two nodes where there are two."""
    node_of = dict(zip(table.names, table.nodes, strict=True))
    row_of = {name: row for row, name in enumerate(table.names)}
    found: dict[str, tuple[int, ...]] = {}

    def effort(name: str, part: int) -> tuple[int, bool, int, int, str]:
        place = members.get(name)
        behind = 0 if place is None else (place[1] - part) % grid.parts
        return int(table.lacks[row_of[name], part]), place is not None, len(found.get(name, ())), behind, name

    for part in range(grid.parts):
        on = {node_of[name] for name, place in members.items() if place[1] == part}
        elsewhere = [name for name in table.names if node_of[name] not in on]
        if len(on) == 1 and elsewhere:
            name = min(elsewhere, key=lambda each: effort(each, part))
            found[name] = (*found.get(name, ()), part)
    return found


# ---------------------------------------------------------------------- before nodes go that were announced


def kept_ahead(
    was: Mapping[str, Place | None],
    now: Grid,
    to: Grid | None,
    params: Sequence[int],
    nodes: Mapping[str, str],
    *,
    kept: Mapping[str, Collection[int]],
    doomed: Collection[str],
    steady: Collection[str] = (),
) -> dict[str, tuple[int, ...]]:
    """Parts of `now` that each is to keep besides what it holds; `doomed` are nodes.

    `to` is the grid to come, None if it is unknown: then no part is to be lost, and nothing else. Workers are as in
    `seats`.
    """
    held = {name: {*kept.get(name, ()), *([place[1]] if place else [])} for name, place in was.items()}
    leaving = [name for name in was if nodes[name] in doomed]
    staying = sorted(name for name in was if name not in leaving and held[name])
    found: dict[str, set[int]] = {name: set() for name in staying}
    if to is not None and len(was) - len(leaving) >= to.gpus:
        seated = seats(was, now, to, params, nodes, kept=kept, leaving=leaving, steady=steady)
        common = overlaps(params, now.parts, to.parts)
        for name, (_, part) in seated.members.items():
            if name in found:
                found[name] = {old for old in range(now.parts) if common[old, part] > 0} - held[name]
    for part in range(now.parts):
        if staying and not any(part in held[name] | found[name] for name in staying):
            name = min(staying, key=lambda each: (was[each] is not None, len(found[each]) + len(held[each]), each))
            found[name].add(part)
    return {name: tuple(sorted(parts)) for name, parts in found.items() if parts}
