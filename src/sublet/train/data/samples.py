"""The samples of a step, and their division among workers.

The order of an epoch is a permutation that follows from (seed, epoch) alone, or that of the dataset where a loader says
so (`loading`). A step takes the next samples, and rank r of W takes its contiguous share. So the only state is the
offset in the epoch, and every sample is seen once however the number of workers changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from sublet.errors import InvalidValue

Collate = Callable[[list[Any]], Any]
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of a worker's share."""

    start: int  # in the order of the epoch
    count: int
    first: bool
    last: bool
    spare: bool = False  # another worker counts it


class Samples:
    """A map-style dataset in the order of each epoch."""

    def __init__(
        self, dataset: Any, seed: int, collate: Collate | None, device: torch.device | None, *, shuffled: bool = True
    ) -> None:
        for method in ("__len__", "__getitem__"):
            if not hasattr(dataset, method):
                raise InvalidValue("dataset", type(dataset).__name__, f"a map-style dataset, with {method}")
        if len(dataset) < 1:
            raise InvalidValue("dataset", len(dataset), "at least one sample long")
        self.count = len(dataset)
        self._dataset, self._seed, self._collate, self._device = dataset, seed, collate or default_collate, device
        self._whole = collate is None and type(dataset) is TensorDataset  # rows of tensors need no collating
        self.draws_here = not self._whole  # the dataset runs in this process, and may draw
        self._shuffled, self._all, self._epoch = shuffled, self.count, -1
        self._orders: dict[torch.device, torch.Tensor] = {}  # of this epoch, where it is needed

    def order(self, epoch: int, device: torch.device = CPU) -> torch.Tensor:
        """Indices of all samples in the order of this epoch.

        Data that lies on a GPU is indexed there: to send indices at every step would wait for the steps before.
        """
        if epoch != self._epoch:
            self._epoch, self._orders = epoch, {CPU: self._order(epoch)}
        if device not in self._orders:
            self._orders[device] = self._orders[CPU].to(device)
        return self._orders[device]

    def _order(self, epoch: int) -> torch.Tensor:
        if not self._shuffled:
            return torch.arange(self.count)
        order = torch.randperm(self._all, generator=torch.Generator().manual_seed(mixed(self._seed, epoch)))
        return order[: self.count]  # of a loader that drops what does not fill a batch: others in every epoch

    def pieces(self, offset: int, size: int, rank: int, world: int, micro_batch: int | None) -> Iterator[MicroBatch]:
        """The micro-batches of one rank for a step of `size` samples from `offset`.

        A rank whose share is empty is given another's sample with no weight, so that its script's loop runs as well.
        """
        low, high = offset + rank * size // world, offset + (rank + 1) * size // world
        if low == high:
            return iter([MicroBatch(start=low, count=1, first=True, last=True, spare=True)])
        return cut_up(low, high, micro_batch)

    def holders(self, size: int, world: int) -> int:
        """How many ranks have samples of such a step."""
        return min(size, world)

    def load(self, epoch: int, piece: MicroBatch) -> Any:
        """The samples of a micro-batch, collated."""
        chosen = slice(piece.start, piece.start + piece.count)
        if self._whole:
            batch: Any = [tensor[self.order(epoch, tensor.device)[chosen]] for tensor in self._dataset.tensors]
            return batch if self._device is None else moved(batch, self._device)
        indices = self.order(epoch)[chosen]
        if hasattr(self._dataset, "__getitems__"):
            batch = self._collate(self._dataset.__getitems__(indices.tolist()))
        else:
            batch = self._collate([self._dataset[index] for index in indices.tolist()])
        return batch if self._device is None else moved(batch, self._device)


def cut_up(low: int, high: int, micro_batch: int | None) -> Iterator[MicroBatch]:
    """A share as micro-batches that are as large as each other."""
    share = high - low
    if not share:
        return
    parts = -(-share // (micro_batch or share))
    for part in range(parts):
        start, end = low + part * share // parts, low + (part + 1) * share // parts
        yield MicroBatch(start=start, count=end - start, first=part == 0, last=part == parts - 1)


def mixed(*numbers: int) -> int:
    """One seed from several numbers; far apart even where the numbers are close (after SplitMix64's finaliser)."""
    stir = 0
    for number in numbers:
        stir = (stir ^ (number & (2**64 - 1))) + 0x9E3779B97F4A7C15 & 2**64 - 1
        stir = (stir ^ stir >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
        stir = (stir ^ stir >> 27) * 0x94D049BB133111EB & 2**64 - 1
        stir ^= stir >> 31
    return stir >> 1  # torch takes 63 bits everywhere


def mapped(made: Callable[..., Any], *batches: Any) -> Any:
    """Apply `made` to the tensors of nested batches; other values are those of the first batch."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return made(*batches)
    if isinstance(first, Mapping):
        return {key: mapped(made, *(each[key] for each in batches)) for key in first}
    if isinstance(first, Sequence) and not isinstance(first, str | bytes):
        parts = [mapped(made, *each) for each in zip(*batches, strict=True)]
        if isinstance(first, tuple):
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)  # a named one keeps its names
        return parts
    return first


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with all its tensors on the device."""

    def there(tensor: torch.Tensor) -> torch.Tensor:
        if device.type == "cuda" and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()  # a copy from other memory would wait for the steps before
        return tensor.to(device, non_blocking=True)

    return mapped(there, batch)
