"""The mean of a loss, or of any figure, over a dataset that is not trained on, with all workers or by one alone.

Each rank takes its share, and the shares are summed where gradients are: a rank that trains on meanwhile, because the
script calls `evaluate` in some ranks only, then meets the others in that sum, and all of them know. Nothing of a
training may depend on whether a worker was lost while it was evaluated: whoever loses the others does the whole by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Subset

from sublet.errors import InvalidValue
from sublet.train.beside import figures_of_rank_0, summed_figure
from sublet.train.drawing import Drawn, order_of
from sublet.train.eval_mode import in_eval_mode
from sublet.train.link import ControllerLink
from sublet.train.options import Options
from sublet.train.samples import moved
from sublet.train.standing import Standing

__all__ = ["Evaluates", "HeldOut", "LossOf"]

LossOf = Callable[[Any], torch.Tensor | float]


class HeldOut:
    """A dataset, or a loader of one with its workers, in its own order; the first `most` samples of it."""

    def __init__(self, data: Any, collate: Any, device: torch.device | str | None, most: int | None) -> None:
        self._loader = data if isinstance(data, DataLoader) else None
        dataset: Any = data.dataset if isinstance(data, DataLoader) else data
        for method in ("__len__", "__getitem__"):
            if not hasattr(dataset, method):
                raise InvalidValue("dataset", type(dataset).__name__, f"a map-style dataset, with {method}")
        self._dataset, self._device = dataset, None if device is None else torch.device(device)
        self._collate = data.collate_fn if isinstance(data, DataLoader) else collate
        self._order: Sequence[int] = range(len(dataset)) if self._loader is None else _chosen(self._loader)
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

    def _batches(self, low: int, high: int, at_a_time: int) -> Any:
        if low == high:
            return ()
        loader = self._loader
        return DataLoader(
            Subset(self._dataset, self._order[low:high]),
            batch_size=at_a_time,
            collate_fn=self._collate,
            num_workers=0 if loader is None else loader.num_workers,
            worker_init_fn=None if loader is None else loader.worker_init_fn,
            pin_memory=loader is not None and loader.pin_memory,
            generator=torch.Generator().manual_seed(0),  # it draws one number, which training is not to miss
        )


def _chosen(loader: DataLoader[Any]) -> Sequence[int]:
    """The samples that it gives: all of them, or those of its own sampler, such as a part that is held out."""
    order = order_of(loader, 0) if type(loader.batch_sampler) is BatchSampler else False
    return order.order(0).tolist() if isinstance(order, Drawn) else range(len(loader.dataset))  # type: ignore[arg-type]  # map-style: it has a length


class Evaluates(Standing):
    """The part of a session that looks at the model, with all workers."""

    options: Options
    _model: torch.nn.Module
    _link: ControllerLink
    _is_behind: bool  # this worker does the first lines of an epoch which the others have behind them

    def evaluate(self, loss_of: LossOf, dataset: Any, limit: int | None = None) -> float:
        """The mean of `loss_of(batch)` over a dataset, or a DataLoader of one, in the model's eval mode.

        Every worker calls it, at the same step: each has its share in it, and all get the result. `limit` counts
        micro-batches (`micro_batch` samples each, or as many as a step has).
        """
        options, steps, group = self.options, self._steps, self._members.group
        if steps.under_way:
            raise InvalidValue("evaluate", "a call within a step", "called where s.updated is true, or after an epoch")
        at_a_time = options.micro_batch or options.global_batch
        held_out = HeldOut(dataset, options.collate, options.device, None if limit is None else limit * at_a_time)
        at_a_time = min(at_a_time, -(-options.global_batch // group.world))
        found = None
        if self._all_are_here:
            share = held_out.mean(self._model, loss_of, group.rank, group.world, at_a_time)
            self._link.script_waits()
            found = summed_figure(steps.gradients, group, steps.drift, self._progress, share)
            self._link.script_goes_on()
        if found is not None:
            return found
        return held_out.mean(self._model, loss_of, 0, 1, at_a_time)

    def told_by_rank_0(self, figures: Sequence[float]) -> list[float]:
        """Rank 0's figures, at all ranks: what each has measured for itself may differ, and what follows from it.

        Every worker calls it, at the same step, with as many. Whoever loses the others meanwhile keeps its own.
        """
        steps, group, found = self._steps, self._members.group, None
        if steps.under_way:
            raise InvalidValue("told_by_rank_0", "a call within a step", "called where s.updated is true")
        if self._all_are_here:
            self._link.script_waits()
            found = figures_of_rank_0(steps.gradients, group, steps.drift, self._progress, figures)
            self._link.script_goes_on()
        return list(figures) if found is None else found

    @property
    def _all_are_here(self) -> bool:
        """Whether all of several workers are in the script now, and where we are in it.

        Those without samples in a step are not; nor are the others where we do the first lines of an epoch again.
        """
        steps = self._steps
        if self._members.group.world == 1 or steps.broken is not None or self._is_behind:
            return False
        return self._between_batches or steps.all_have_samples

    @property
    def _between_batches(self) -> bool:
        """All workers are between the batches of two epochs, and those without samples in a step too."""
        raise NotImplementedError
