"""Updates by a summed gradient: unscaled, clipped, and applied at the learning rate of this batch.

All members have the same sum, so all clip alike, and with a GradScaler all skip the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sublet.errors import InvalidValue, OutOfMemory
from sublet.train.numerics.gradients import Gradients
from sublet.train.numerics.memory import SLIMMER
from sublet.train.numerics.noise import BatchRange, rate_rule
from sublet.train.sessions.options import Options
from sublet.train.sessions.turns import Turn
from sublet.train.state.state import Progress


class Guard:
    """Lets no one but the session step these optimizers, from `begin` to `end`."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers, self._updates = optimizers, False
        self._handles: list[Any] = []

    def begin(self) -> None:
        """From now on only `updates` may."""
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._refuse_others))
            vars(optimizer)["zero_grad"] = _nothing  # gradients are ours; a line left over must not clear half a batch

    def end(self) -> None:
        """Everything as it was."""
        for handle in self._handles:
            handle.remove()
        for optimizer in self._optimizers:
            vars(optimizer).pop("zero_grad", None)

    @contextmanager
    def updates(self) -> Iterator[None]:
        """The model is updated here."""
        self._updates = True
        try:
            yield
        finally:
            self._updates = False

    def _refuse_others(self, *_: Any) -> None:
        if not self._updates:
            raise InvalidValue("optimizer.step()", "a call", "left to the session: s.step(...) updates the model")


def _nothing(*_: Any, **__: Any) -> None:
    """In place of zero_grad."""


class Updates:
    """Applies gradients by the optimizers of a session."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], options: Options) -> None:
        self.guard, self._options, self._scaler = Guard(optimizers), options, options.scaler
        self._rule, self._adaptive = rate_rule(options.lr_rule), options.adaptive

    @property
    def scale(self) -> float:
        """The factor of losses before backward."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The start of backward: half precision has no room for small gradients."""
        if self._scaler is None:
            return loss
        scaled: torch.Tensor = self._scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """After the sum: gradients as they are; whether all are finite is noted."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def clip(self, gradients: Gradients) -> torch.Tensor | None:
        """Clip as the options say; the norm before, if they ask for it."""
        options, norm = self._options, None
        if options.clip_norm is not None:
            norm = torch.nn.utils.get_total_norm(gradients.tensors)
            torch.nn.utils.clip_grads_with_norm_(gradients.parameters, options.clip_norm, norm)
        if options.clip_value is not None:
            for tensor in gradients.tensors:
                tensor.clamp_(-options.clip_value, options.clip_value)
        return norm

    def apply(self, turn: Turn, progress: Progress, size: int, *, last: bool) -> None:
        """One update by `size` samples; `last`: no other optimizer has its turn after it in this step."""
        try:
            with self.guard.updates(), turn.gradients.as_they_came():
                if self._adaptive is None:
                    self._step(turn.optimizer)
                else:
                    self._step_at_rate(turn.optimizer, self._adaptive, progress, size)
        except torch.OutOfMemoryError as error:  # the samples are out of memory by now: fewer of them would not help
            raise OutOfMemory(0, hint=SLIMMER) from error
        if last and self._scaler is not None:
            self._scaler.update()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)  # nothing, if a gradient is not finite

    def _step_at_rate(
        self, optimizer: torch.optim.Optimizer, batches: BatchRange, progress: Progress, size: int
    ) -> None:
        groups, rule = optimizer.param_groups, self._rule
        before = [group["lr"] for group in groups]
        # The last step of an epoch may be of a few samples: at a rate for the whole batch it would run away.
        batch = max(size, min(progress.batch, batches.initial))
        noise = progress.noise.scale
        for group in groups:
            group["lr"] = group["lr"] * rule.factor(batches, batch, noise, rooted="betas" in group)
        self._step(optimizer)
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate
