"""What those who meet after a change agree on, before anything moves: a step is applied by all of them or by none.

A worker enters the agreement of a step only with the whole sum of its part (it is *pending*), applies the step only
after the agreement, and begins the next one only after that. So where anybody has applied a step, everybody who is left
has applied it or has it pending: who has it pending rolls forward with the numbers that were agreed. Where nobody who
is left has applied it, nothing that survives has seen it: the sums are thrown away, and its atoms are done again.
Who comes before the first step is made has nothing, applied or pending, and is one step behind all the same: it takes.
Where nobody has anything, the first who wants a unit makes it, and hands it to the others: what each process has built
need not be the same, as where a script throws dice that nobody has seeded.

A worker that is further behind was away, and what it holds is old: it counts as empty.

Of those who hold a unit, whoever is the least busy sends it, by bytes that it has sent. A unit that many want is sent
on by those who have received it: a tree, in rounds, so that no single holder sends it a dozen times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

__all__ = ["NOTHING", "Lost", "Meeting", "Met", "Move", "Standing", "meet", "moves"]

NOTHING = -1


class Lost(Exception):
    """Nobody who is left holds a unit: all go back to a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one worker brings: steps applied, the number of the step whose sums it has, and the units that it holds."""

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
    """The same for all who meet. Workers are their numbers there."""

    applied: int  # steps that all have applied when it is over; 0 with no holder at all: each unit is made by one
    speaker: int | None  # who has the numbers that were agreed, for those who roll forward
    roll: tuple[int, ...]  # those who apply the step that they have pending
    empty: tuple[int, ...]  # those whose units are old: they let go of them
    moves: tuple[Move, ...]

    @property
    def anew(self) -> bool:
        """Nobody has anything."""
        return self.speaker is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A meeting, as one of those who were there has it."""

    meeting: Meeting
    moved_bytes: int  # that came to us
    gave_bytes: int
    rolled: bool
    source: str = "peer"  # fresh | peer | checkpoint: where the state came from
    lost: bool = False  # nobody who was left held a unit: all went back
    redone: int = 0  # steps that were lost with it


def meet(standings: Sequence[Standing], want: Sequence[AbstractSet[int]], sizes: Mapping[int, int]) -> Meeting | None:
    """What follows from what they bring; None if a unit is lost: then all go back to a checkpoint."""
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
    """So that everybody has what it wants; None if nobody has a unit that somebody wants.

    Nobody sends what it does not have, or receives what it has. In a round each holder sends a unit once, so a unit is
    with twice as many after it: as many rounds as the logarithm of those who want it. O(moves x workers).
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
