"""Who holds which range of the state, and what moves when that changes: pure, so that all come to the same answer.

A group of W workers has R ranges, and rank r holds number r % R: each range is on W // R workers, or one more. Holders
come in groups, not in a chain, since then fewer pairs of losses take a range with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sublet.train.grid.meeting import Move, moves

__all__ = ["Ranges", "Span", "cells", "moved", "within"]

Span = tuple[int, int]  # numbers from the first up to the second


@dataclass(frozen=True, slots=True)
class Ranges:
    """`size` numbers in `count` ranges, as even as there are, for `world` workers."""

    size: int
    count: int
    world: int

    def of(self, rank: int) -> Span:
        """What a worker holds."""
        number = rank % self.count
        return self.size * number // self.count, self.size * (number + 1) // self.count

    def share(self, rank: int) -> Span:
        """What it tells the others after a step: its holders divide a range among themselves."""
        start, end = self.of(rank)
        holders = len(range(rank % self.count, self.world, self.count))
        place = rank // self.count
        return start + (end - start) * place // holders, start + (end - start) * (place + 1) // holders


def within(spans: Iterable[Span], start: int, end: int) -> bool:
    """Whether these have all of it."""
    for low, high in sorted(spans):
        if low <= start < high:
            start = high
    return start >= end


def cells(size: int, spans: Iterable[Span]) -> Iterator[Span]:
    """The line in pieces that each of the spans has whole or not at all."""
    borders = sorted({0, size}.union(*({low, high} for low, high in spans)))
    yield from pairwise(borders)


def moved(
    size: int, have: Sequence[Sequence[Span]], want: Sequence[Sequence[Span]]
) -> tuple[list[Span], tuple[Move, ...]] | None:
    """Pieces, and who gives which to whom, so that all have what they want; None if nobody has some of it."""
    pieces = list(cells(size, [span for spans in (*have, *want) for span in spans]))
    sizes = {number: high - low for number, (low, high) in enumerate(pieces)}
    has, wants = (
        [frozenset(n for n, (low, high) in enumerate(pieces) if within(spans, low, high)) for spans in all_of]
        for all_of in (have, want)
    )
    found = moves(has, wants, sizes)
    return None if found is None else (pieces, found)
