"""The order of a loader's own sampler: drawn so that it follows from the seed and the epoch, in every process alike.

A weighted sampler, one of a subset, or one that a script has written gives its indices one after the other. All of an
epoch are asked for at once, with all dice that it may throw seeded, and are dealt to workers as any order is. What each
process draws must be the same: a sampler that gives another order each time it is asked, or that gives each rank its
own part, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from sublet.errors import InvalidValue
from sublet.train.data.samples import mixed
from sublet.train.numerics.seeds import dice_kept, reseed_host

__all__ = ["Drawn", "order_of"]


class Drawn:
    """Of one sampler."""

    def __init__(self, sampler: Any, seed: int, samples: int) -> None:
        self.sampler, self._seed, self._samples = sampler, seed, samples
        name = type(sampler).__name__
        if hasattr(sampler, "num_replicas"):
            allowed = "one of a single process: the session deals what it gives to all workers"
            raise InvalidValue("loader", f"with sampler={name}, which gives each rank its part", allowed)
        first = self.order(0)
        self.count = len(first)
        if not torch.equal(first, self.order(0)):
            allowed = (
                "one whose order follows from torch's, numpy's or Python's global random numbers, from a `generator` of"
                " its own, or from set_epoch(): every worker, and every restart, has to draw the same"
            )
            raise InvalidValue("loader", f"with sampler={name}, which gives another order each time", allowed)
        if len(self.order(1)) != self.count:
            allowed = "one that gives as many samples in every epoch"
            raise InvalidValue("loader", f"with sampler={name}, of {self.count} samples and then others", allowed)

    def order(self, epoch: int) -> torch.Tensor:
        """Indices of samples, some of them perhaps several times."""
        with dice_kept(), self._seeded(epoch):
            found = torch.tensor([int(index) for index in self.sampler], dtype=torch.int64)
        if not len(found) or found.min() < 0 or found.max() >= self._samples:
            what = f"with sampler={type(self.sampler).__name__}, of {len(found)} samples in epoch {epoch}"
            raise InvalidValue("loader", what, f"one that gives some of the numbers 0 to {self._samples - 1}")
        return found

    @contextmanager
    def _seeded(self, epoch: int) -> Iterator[None]:
        """All that it may draw from."""
        reseed_host(self._seed, epoch)
        own = getattr(self.sampler, "generator", None)
        was = own.get_state() if isinstance(own, torch.Generator) else None
        if isinstance(own, torch.Generator):
            own.manual_seed(mixed(self._seed, epoch))
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        try:
            yield
        finally:
            if isinstance(own, torch.Generator) and was is not None:
                own.set_state(was)  # others may draw from it too


def order_of(loader: DataLoader[Any], seed: int) -> bool | Drawn:
    """Whether it shuffles, or what its own sampler draws; refuses what only its batches know."""
    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler:
        raise InvalidValue(
            "loader",
            f"with batch_sampler={type(sampler).__name__}",
            "one with batch_size, and sampler= for the order: the session makes the batches",
        )
    order: Any = sampler.sampler
    samples = len(loader.dataset)  # type: ignore[arg-type]  # map-style: it has a length
    if type(order) is DistributedSampler:
        return bool(order.shuffle)  # its division among ranks is the session's business
    if type(order) is RandomSampler and not order.replacement and order.num_samples == samples:
        return True
    if type(order) is SequentialSampler and len(order) == samples:
        return False
    return Drawn(order, seed, samples)
