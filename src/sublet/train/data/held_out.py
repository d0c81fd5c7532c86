"""What is evaluated on: a dataset that is not trained on, or a loader of one, in its own order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Subset

from sublet.errors import InvalidValue
from sublet.train.data.drawing import Drawn, order_of
from sublet.train.data.samples import moved

__all__ = ["HeldOut", "LossOf", "in_eval_mode"]

LossOf = Callable[[Any], torch.Tensor | float]


class HeldOut:
    """A dataset, or a loader of one with its workers, in its own order; the first `most` samples of it."""

    def __init__(self, data: Any, collate: Any, device: torch.device | str | None, most: int | None) -> None:
        dataset: Any = data.dataset if isinstance(data, DataLoader) else data
        for method in ("__len__", "__getitem__"):
            if not hasattr(dataset, method):
                raise InvalidValue("dataset", type(dataset).__name__, f"a map-style dataset, with {method}")
        self._dataset, self._device = dataset, None if device is None else torch.device(device)
        self._of = data if isinstance(data, DataLoader) else DataLoader(dataset, collate_fn=collate)
        self._order = _chosen(self._of)
        self.count = len(self._order) if most is None else min(len(self._order), most)
        if self.count < 1:
            raise InvalidValue("dataset", len(dataset), "at least one sample long")

    def mean(self, model: torch.nn.Module, loss_of: LossOf, rank: int, world: int, at_a_time: int) -> float:
        """The part of one rank in the mean over all samples, in the model's eval mode."""
        low, high = rank * self.count // world, (rank + 1) * self.count // world
        total, done = 0.0, low
        with in_eval_mode(model), torch.no_grad():
            for batch in self._batches(low, high, at_a_time):
                count = min(at_a_time, high - done)
                given = batch if self._device is None else moved(batch, self._device)
                total, done = total + float(loss_of(given)) * count, done + count
        return total / self.count

    def load(self, start: int, count: int) -> Any:
        """A micro-batch of it, in this process."""
        batch = self._of.collate_fn([self._dataset[index] for index in self._order[start : start + count]])
        return batch if self._device is None else moved(batch, self._device)

    def _batches(self, low: int, high: int, at_a_time: int) -> Any:
        if low == high:
            return ()
        loader = self._of
        return DataLoader(
            Subset(self._dataset, self._order[low:high]),
            batch_size=at_a_time,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            worker_init_fn=loader.worker_init_fn,
            pin_memory=loader.pin_memory,
            generator=torch.Generator().manual_seed(0),  # it draws one number, which training is not to miss
        )


def _chosen(loader: DataLoader[Any]) -> Sequence[int]:
    """The samples that it gives: all of them, or those of its own sampler, such as a part that is held out."""
    order = order_of(loader, 0) if type(loader.batch_sampler) is BatchSampler else False
    return order.order(0).tolist() if isinstance(order, Drawn) else range(len(loader.dataset))  # type: ignore[arg-type]  # map-style: it has a length


@contextmanager
def in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Each module is in the mode that it was in afterwards: a script may have some of it in that mode anyway."""
    was = [(each, each.training) for each in model.modules()]
    model.train(False)  # noqa: FBT003 - as torch has it
    try:
        yield
    finally:
        for each, training in was:
            each.training = training
