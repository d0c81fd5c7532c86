"""Who sends which unit to whom: pure, so that every worker at a meeting comes to the same answer by itself.

Of those who hold a unit, whoever is the least busy sends it, by bytes that it has sent. A unit that many want is sent
on by those who have received it: a tree, in rounds, so that no single holder sends it a dozen times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

__all__ = ["Move", "moves"]


@dataclass(frozen=True, slots=True)
class Move:
    """A unit from one worker to another, by their numbers at the meeting. Rounds follow one another."""

    unit: int
    giver: int
    taker: int
    round: int


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
