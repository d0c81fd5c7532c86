"""Agreement after a change, before anything moves: a step is applied by all workers or by none.

A worker enters the agreement of a step only with the whole sum of its part (the step is *pending*), applies the step
only after the agreement, and begins the next one only after that. So if any worker has applied a step, every worker
that is left has applied it or has it pending: the latter rolls forward with the agreed numbers. If no worker that is
left has applied it, the sums are dropped, and the step is made again. A worker that comes before the first step has
nothing, and takes. If all have nothing, the first that wants a unit makes it and hands it to the others: the weights
that each process has built may differ, as where a script draws them without a seed.

A worker that is further behind was away, and its units are old: it counts as empty.

Of the holders of a unit, the one that has sent the fewest bytes sends it. A unit that many want is passed on by its
takers: a tree, in rounds, so that no single holder sends it a dozen times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

NOTHING = -1


class PartLost(Exception):
    """No worker that is left holds a unit: all go back to a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One worker before a meeting: steps applied, the number of the step whose sums it has, and its units."""

    applied: int = NOTHING  # nothing is held
    pending: int = NOTHING  # no sums: it equals `applied` otherwise, since steps count from 0
    units: AbstractSet[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Move:
    """A unit from one worker to another, by their numbers at the meeting. Rounds follow one another."""

    unit: int
    giver: int
    taker: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The result, the same for all. Workers are their numbers at the meeting."""

    applied: int  # steps that all have applied when it is over; 0 with no holder at all: each unit is made by one
    speaker: int | None  # a worker that has the agreed numbers, for those that roll forward
    roll: tuple[int, ...]  # workers that apply their pending step
    empty: tuple[int, ...]  # workers whose units are old: they drop them
    moves: tuple[Move, ...]

    @property
    def anew(self) -> bool:
        """No worker has anything."""
        return self.speaker is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A meeting, as one of its workers has it."""

    meeting: Meeting
    moved_bytes: int  # that came to us
    gave_bytes: int
    rolled: bool
    source: str = "peer"  # fresh | peer | checkpoint: where the state came from
    lost: bool = False  # a unit was lost: all went back
    redone: int = 0  # steps that were lost with it


def meet(standings: Sequence[Standing], want: Sequence[AbstractSet[int]], sizes: Mapping[int, int]) -> Meeting | None:
    """The result of these standings; None if a unit is lost: then all go back to a checkpoint."""
    goal = max((standing.applied for standing in standings), default=NOTHING)
    everyone = range(len(standings))
    if goal == NOTHING:
        made, first = list[frozenset[int]](), set[int]()
        for units in want:
            made.append(frozenset(units) - first)
            first |= units
        return Meeting(applied=0, speaker=None, roll=(), empty=(), moves=moves(made, want, sizes) or ())
    roll = tuple(each for each in everyone if standings[each].applied == standings[each].pending == goal - 1 != NOTHING)
    current = {each for each in everyone if standings[each].applied == goal}.union(roll)
    empty = tuple(each for each in everyone if each not in current and standings[each].units)
    have = [standings[each].units if each in current else frozenset[int]() for each in everyone]
    needed = moves(have, want, sizes)
    if needed is None:
        return None
    speaker = next(each for each in everyone if standings[each].applied == goal)
    return Meeting(applied=goal, speaker=speaker, roll=roll, empty=empty, moves=needed)


def moves(
    have: Sequence[AbstractSet[int]], want: Sequence[AbstractSet[int]], sizes: Mapping[int, int]
) -> tuple[Move, ...] | None:
    """Moves that give each worker what it wants; None if a unit is lost.

    In a round each holder sends a unit at most once, so the holders of a unit double: as many rounds as the logarithm
    of those that want it. O(moves x workers).
    """
    sent = [0] * len(have)
    found: list[Move] = []
    wanted = sorted(
        {unit for units in want for unit in units},
        key=lambda unit: (-sizes[unit], unit),  # large ones first: small ones then even out what the givers send
    )
    for unit in wanted:
        holders = [worker for worker, units in enumerate(have) if unit in units]
        takers = [worker for worker, units in enumerate(want) if unit in units and unit not in have[worker]]
        if takers and not holders:
            return None
        turn = 0
        while takers:
            givers = sorted(holders, key=lambda worker: (sent[worker], worker))
            for giver in givers[: len(takers)]:
                taker = takers.pop(0)
                found.append(Move(unit, giver, taker, turn))
                sent[giver] += sizes[unit]
                holders.append(taker)
            turn += 1
    return tuple(sorted(found, key=lambda move: (move.round, move.unit, move.taker)))
