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
from sublet.train.gradients import LOSS
from sublet.train.losses import loss_of
from sublet.train.membership import Membership
from sublet.train.position import Position
from sublet.train.samples import moved
from sublet.train.state import Progress
from sublet.train.steps import Steps
from sublet.train.strategy import Around

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


class Evaluates:
    """The part of a strategy that looks at the model, where every worker has all of it, and tells how it stands."""

    _around: Around
    _model: torch.nn.Module
    steps: Steps
    members: Membership
    progress: Progress
    position: Position

    def evaluate(self, given: LossOf | None, dataset: Any, limit: int | None) -> float:
        """As of any strategy."""
        options, steps, group = self._around.options, self.steps, self.members.group
        if steps.under_way:
            raise InvalidValue("evaluate", "a call within a step", "called where s.updated is true, or after an epoch")
        at_a_time = options.micro_batch or options.global_batch
        held_out = HeldOut(dataset, options.collate, options.device, None if limit is None else limit * at_a_time)
        at_a_time = min(at_a_time, -(-options.global_batch // group.world))
        loss = given or self._mean_of
        found = None
        if self._all_are_here:
            share = held_out.mean(self._model, loss, group.rank, group.world, at_a_time)
            self._around.link.script_waits()
            found = summed_figure(steps.gradients, group, steps.drift, self.progress, share)
            self._around.link.script_goes_on()
        if found is not None:
            return found
        return held_out.mean(self._model, loss, 0, 1, at_a_time)

    def _mean_of(self, batch: Any) -> torch.Tensor:
        options = self._around.options
        if options.loss is None or options.sums:
            allowed = "s.evaluate(loss_of, dataset), with a mean over samples, where the loss of the session is a sum"
            raise InvalidValue("evaluate", "a dataset alone", allowed)
        return loss_of(self._model, options.loss, batch, counts=False)[0]

    def told_by_rank_0(self, figures: Sequence[float]) -> list[float]:
        """As of any strategy."""
        steps, group, found = self.steps, self.members.group, None
        if steps.under_way:
            raise InvalidValue("told_by_rank_0", "a call within a step", "called where s.updated is true")
        if self._all_are_here:
            self._around.link.script_waits()
            found = figures_of_rank_0(steps.gradients, group, steps.drift, self.progress, figures)
            self._around.link.script_goes_on()
        return list(figures) if found is None else found

    @property
    def _all_are_here(self) -> bool:
        """Whether all of several workers are in the script now, and where we are in it.

        Those without samples in a step are not; nor are the others where we do the first lines of an epoch again.
        """
        if self.members.group.world == 1 or self.steps.broken is not None or self.position.is_behind:
            return False
        return self.position.between_batches or self.steps.all_have_samples

    # ------------------------------------------------------------------------------------------- what a script asks

    @property
    def rank(self) -> int:
        """In the group."""
        return self.members.group.rank

    @property
    def world(self) -> int:
        """Of the group."""
        return self.members.group.world

    @property
    def generation(self) -> int:
        """Of the group."""
        return self.members.group.generation

    @property
    def grid(self) -> tuple[int, int]:
        """Copies of one part."""
        return self.world, 1

    @property
    def place(self) -> tuple[int, int]:
        """A copy of its own."""
        return self.rank, 0

    @property
    def loss(self) -> float:
        """As it was read."""
        return self.steps.readings.numbers[LOSS]

    @property
    def loss_tensor(self) -> torch.Tensor:
        """As it was computed."""
        return self.steps.readings.loss

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """None without `clip_norm`."""
        return self.steps.grad_norm

    @property
    def updated(self) -> bool:
        """By the last micro-batch."""
        return self.steps.updated

    @property
    def gives_last(self) -> bool:
        """Of the step."""
        return self.steps.gives_last
