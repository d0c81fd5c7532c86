"""The parameters of an optimizer as one line of numbers, and tensors of several types as one message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from sublet.errors import InvalidValue

__all__ = ["Flat", "Parcel", "Piece"]

ALIGN = 16  # bytes: more than any type needs


@dataclass(frozen=True, slots=True)
class Piece:
    """Numbers `low` up to `high` of one parameter."""

    parameter: int
    low: int
    high: int

    @property
    def size(self) -> int:
        """How many."""
        return self.high - self.low


class Flat:
    """In the order of the optimizer's groups."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        for each in parameters:
            if not each.is_contiguous():
                shown = f"{tuple(each.shape)} in another order than that of its numbers"
                raise InvalidValue("a parameter", shown, "contiguous, to be cut into ranges; or shards: off")
        self.parameters = list(parameters)
        self._starts = [0, *accumulate(each.numel() for each in parameters)]
        self.size = self._starts[-1]

    def pieces(self, start: int, end: int) -> list[Piece]:
        """Of a span, in order."""
        found, number = [], bisect_right(self._starts, start) - 1
        while start < end:
            first, last = self._starts[number], min(self._starts[number + 1], end)
            if last > start:
                found.append(Piece(number, start - first, last - first))
                start = last
            number += 1
        return found

    def span(self, piece: Piece) -> tuple[int, int]:
        """Where it lies."""
        start = self._starts[piece.parameter]
        return start + piece.low, start + piece.high

    def weights(self, piece: Piece) -> torch.Tensor:
        """As they are in the parameter."""
        return self.parameters[piece.parameter].detach().view(-1)[piece.low : piece.high]


class Parcel:
    """How tensors of these types and lengths lie in one piece of memory."""

    def __init__(self, kinds: Iterable[tuple[torch.dtype, int]]) -> None:
        self._fields, end = [], 0
        for dtype, length in kinds:
            self._fields.append((end, dtype, length))
            end += -(-length * dtype.itemsize // ALIGN) * ALIGN
        self.size_bytes = end

    def seen_in(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """All of them, as views."""
        return [memory[start : start + length * dtype.itemsize].view(dtype) for start, dtype, length in self._fields]
