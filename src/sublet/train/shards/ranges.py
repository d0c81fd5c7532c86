"""Ranges of the state and their holders, and what moves when these change: pure, so all workers agree.

A group of W workers has R ranges, and rank r holds number r % R: each range is on W // R workers, or one more. Holders
come in groups, not in a chain, since then fewer pairs of losses take a range with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from sublet.errors import InvalidValue
from sublet.train.grid.meeting import Move, moves

Span = tuple[int, int]  # numbers from the first up to the second
ALIGN = 16  # bytes: more than any type needs


@dataclass(frozen=True, slots=True)
class Ranges:
    """`size` numbers in `count` ranges, as even as there are, for `world` workers."""

    size: int
    count: int
    world: int

    def of(self, rank: int) -> Span:
        """The range of a worker."""
        number = rank % self.count
        return self.size * number // self.count, self.size * (number + 1) // self.count

    def share(self, rank: int) -> Span:
        """The part that it sends after a step: the holders of a range divide it."""
        start, end = self.of(rank)
        holders = len(range(rank % self.count, self.world, self.count))
        place = rank // self.count
        return start + (end - start) * place // holders, start + (end - start) * (place + 1) // holders


def within(spans: Iterable[Span], start: int, end: int) -> bool:
    """Whether these spans cover all of it."""
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
    """Pieces, and the moves of each, so that all have what they want; None if a piece is lost."""
    pieces = list(cells(size, [span for spans in (*have, *want) for span in spans]))
    sizes = {number: high - low for number, (low, high) in enumerate(pieces)}
    has, wants = (
        [frozenset(n for n, (low, high) in enumerate(pieces) if within(spans, low, high)) for spans in all_of]
        for all_of in (have, want)
    )
    found = moves(has, wants, sizes)
    return None if found is None else (pieces, found)


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """Numbers `low` up to `high` of one parameter."""

    parameter: int
    low: int
    high: int

    @property
    def size(self) -> int:
        """How many."""
        return self.high - self.low


class Flat:
    """The parameters of an optimizer, in the order of its groups, as one line of numbers."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        for each in parameters:
            if not each.is_contiguous():
                shown = f"{tuple(each.shape)} in another order than that of its numbers"
                raise InvalidValue("a parameter", shown, "contiguous, to be cut into ranges; or shards: off")
        self.parameters = list(parameters)
        self._starts = [0, *accumulate(each.numel() for each in parameters)]
        self.size = self._starts[-1]

    def pieces(self, start: int, end: int) -> list[ParameterSlice]:
        """The pieces of a span, in order."""
        found, number = [], bisect_right(self._starts, start) - 1
        while start < end:
            first, last = self._starts[number], min(self._starts[number + 1], end)
            if last > start:
                found.append(ParameterSlice(number, start - first, last - first))
                start = last
            number += 1
        return found

    def span(self, piece: ParameterSlice) -> tuple[int, int]:
        """The span of a piece."""
        start = self._starts[piece.parameter]
        return start + piece.low, start + piece.high

    def weights(self, piece: ParameterSlice) -> torch.Tensor:
        """A view of the parameter."""
        return self.parameters[piece.parameter].detach().view(-1)[piece.low : piece.high]


class Parcel:
    """The layout of tensors of these types and lengths in one piece of memory."""

    def __init__(self, kinds: Iterable[tuple[torch.dtype, int]]) -> None:
        self._fields, end = [], 0
        for dtype, length in kinds:
            self._fields.append((end, dtype, length))
            end += -(-length * dtype.itemsize // ALIGN) * ALIGN
        self.size_bytes = end

    def seen_in(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """All of them, as views."""
        return [memory[start : start + length * dtype.itemsize].view(dtype) for start, dtype, length in self._fields]
