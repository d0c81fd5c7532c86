"""Batches that a function draws at random: those of a step follow from the seed and its number, at any width.

    with train.session(model, optimizer, train.drawn(get_batch), steps=10_000) as s:
        for x, y in s:

Every worker draws the whole batch, alike, and takes its own rows of it. So a function that draws is to be quick, and to
draw from the global random numbers of torch, Python and NumPy alone; its rows, the first dimension, are the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.data.samples import Piece, Samples, mapped, moved
from sublet.train.numerics.seeds import dice_kept, reseed_host

__all__ = ["NO_END", "DrawnSamples", "Draws"]

NO_END = 2**53  # samples of an epoch: more than any training takes


class Draws:
    """What `train.drawn` gives; `batch_size` is that of one draw."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        found = list[torch.Tensor]()
        mapped(found.append, self.draw(0, 0))
        if not found or not found[0].ndim or not len(found[0]):
            raise InvalidValue("drawn(function)", "no tensor with rows", "a batch: a tensor, or several in a tuple")
        self.batch_size = len(found[0])

    def draw(self, seed: int, number: int) -> Any:
        """One batch, as of this seed; the random numbers of the script stay as they are."""
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]  # torch gives it no type
        with dice_kept(), torch.random.fork_rng(devices):
            reseed_host(seed, number)
            if devices:
                torch.cuda.manual_seed_all(torch.initial_seed())
            return self.function()


class DrawnSamples(Samples):
    """As those of a dataset without an end, in the order of the draws."""

    def __init__(self, drawn: Draws, seed: int, device: torch.device | None) -> None:
        self._drawn, self._seed, self._device = drawn, seed, device
        self.count, self.draws_here = NO_END, False
        self._last: tuple[int, Any] = (-1, None)

    def load(self, epoch: int, piece: Piece) -> Any:
        """The rows of a micro-batch, of one draw or of several."""
        del epoch  # there is one
        size, row = self._drawn.batch_size, piece.start
        parts = list[tuple[Any, slice]]()
        while row < piece.start + piece.count:
            number, first = divmod(row, size)
            last = min(size, first + piece.start + piece.count - row)
            if self._last[0] != number:
                self._last = number, self._drawn.draw(self._seed, number)
            parts.append((self._last[1], slice(first, last)))
            row += last - first

        def rows(*tensors: torch.Tensor) -> torch.Tensor:
            if not tensors[0].ndim or len(tensors[0]) != size:
                return tensors[0]
            return torch.cat([each[some] for each, (_, some) in zip(tensors, parts, strict=True)])

        batch = mapped(rows, *(each for each, _ in parts))
        return batch if self._device is None else moved(batch, self._device)
