"""The mean of a loss, or of any figure, over a dataset that is not trained on, with all workers or by one alone.

Each rank takes its share, and the shares are summed where gradients are: a rank that trains on meanwhile, because the
script calls `evaluate` in some ranks only, then meets the others in that sum, and all of them know. Nothing of a
training may depend on whether a worker was lost while it was evaluated: whoever loses the others does the whole by
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.data.held_out import HeldOut, LossOf
from sublet.train.link.beside import state_of_rank_0, summed_figure
from sublet.train.link.membership import Membership
from sublet.train.numerics.gradients import LOSS
from sublet.train.sessions.losses import loss_of
from sublet.train.sessions.position import Position
from sublet.train.sessions.steps import Steps
from sublet.train.sessions.strategy import Around, Where
from sublet.train.state.state import Progress

__all__ = ["Evaluates"]


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
            told = {"figures": [float(figure) for figure in figures]}
            found = state_of_rank_0(steps.gradients, group, steps.drift, self.progress, told)
            self._around.link.script_goes_on()
        return list(figures if found is None else found["figures"])

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
    def where(self) -> Where:
        """Copies of one part, and a copy of our own."""
        group = self.members.group
        return Where(group.rank, group.world, group.generation, (group.world, 1), (group.rank, 0))

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
