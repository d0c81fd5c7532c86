"""The micro-batches of a step, and in which order a part works on them: one forward, one backward.

They follow from the step alone, so that no grid changes what is computed. A copy takes a contiguous share of them. What
a copy adds up is therefore the same sum in the same order as long as the number of copies is.

The first part runs as many atoms ahead as there are parts behind it, then gives one back for each that it takes. So a
part holds the activations of at most `parts - part` atoms, and the pipeline is as full as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sublet.train.data.samples import Piece, Samples
from sublet.train.numerics.seeds import dice_kept, reseed_host

__all__ = ["Atom", "Pass", "atoms", "loaded", "schedule", "share"]


@dataclass(frozen=True, slots=True)
class Atom:
    """`count` samples from `start` on, in the order of the epoch. It is never cut."""

    start: int
    count: int


def atoms(offset: int, size: int, micro_batch: int) -> tuple[Atom, ...]:
    """Those of a step of `size` samples from `offset` on; the last may be smaller.

    >>> atoms(10, 5, 2)
    (Atom(start=10, count=2), Atom(start=12, count=2), Atom(start=14, count=1))
    """
    starts = range(offset, offset + size, micro_batch)
    return tuple(Atom(start, min(micro_batch, offset + size - start)) for start in starts)


def share(of: tuple[Atom, ...], copy: int, copies: int) -> tuple[Atom, ...]:
    """Those of one copy. Of more copies than atoms some have none.

    >>> [len(share(atoms(0, 10, 2), copy, 3)) for copy in range(3)]
    [1, 2, 2]
    """
    return of[copy * len(of) // copies : (copy + 1) * len(of) // copies]


@dataclass(frozen=True, slots=True)
class Pass:
    """Of one atom through one part."""

    atom: int
    forward: bool


@lru_cache(maxsize=64)  # asked for in every step, with the same numbers
def schedule(part: int, parts: int, atoms: int) -> tuple[Pass, ...]:
    """All passes of a part in a step, in order.

    >>> "".join(f"{'F' if each.forward else 'B'}{each.atom} " for each in schedule(0, 2, 3))
    'F0 F1 B0 F2 B1 B2 '
    """
    ahead = min(atoms, parts - 1 - part)
    order = [Pass(atom, forward=True) for atom in range(ahead)]
    for atom in range(ahead, atoms):
        order += (Pass(atom, forward=True), Pass(atom - ahead, forward=False))
    order += (Pass(atom, forward=False) for atom in range(atoms - ahead, atoms))
    return tuple(order)


def loaded(samples: Samples, seed: int, epoch: int, atom: Atom) -> Any:
    """What is in it: the same wherever it is loaded, since what samples draw follows from where they are."""
    piece = Piece(start=atom.start, count=atom.count, first=False, last=False)
    if not samples.draws_here:
        return samples.load(epoch, piece)
    with dice_kept():
        reseed_host(seed, epoch, atom.start)
        return samples.load(epoch, piece)
