"""What a user may say about a training run beside model, optimizer and dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sublet.domain.quantity import positive, whole
from sublet.train.blocks import Blocks
from sublet.train.fitness import check_methods
from sublet.train.noise import BatchRange
from sublet.train.rates import RateRule, rate_rule

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything but the batch has a default.

    With `batch_range` the batch is adaptive: the gradient noise scale is measured and the batch grows towards it, or
    follows the controller's plan. The learning rate then follows by `lr_rule` (`train.rates`), and schedulers step once
    per `global_batch` samples instead of once per step.
    """

    global_batch: int  # samples per step over all workers; the initial batch if it is adaptive
    epochs: int | None = None  # of the whole training; s.epochs() needs it, s.batches(epochs=...) can say it instead
    scheduler: Any = None  # a learning rate scheduler, or several; stepped by the session after every optimizer step
    seed: int = 0  # of the order of samples, and of newcomers' random numbers
    micro_batch: int | None = None  # samples that one worker takes at a time; more are accumulated
    batch_range: tuple[int, int] | None = None  # None = the batch is fixed
    lr_rule: str = RateRule.ADASCALE  # how the learning rate follows the batch: adascale, sqrt, linear or none
    clip_norm: float | None = None  # longest gradient, over the global batch
    collate: Callable[[list[Any]], Any] | None = None  # None = torch's default_collate
    extra_state: Any = None  # something with state_dict and load_state_dict that belongs to the state
    device: torch.device | str | None = None  # where batches go; None = they stay where they are
    parts: Blocks | None = None  # where the model may be cut; None = every worker has all of it
    checkpoint_dir: Path | str | None = None  # None = $SUBLET_CHECKPOINT_DIR, and none without it; see `train.place`

    def __post_init__(self) -> None:
        whole("global_batch", self.global_batch, 1)
        if self.epochs is not None:
            whole("epochs", self.epochs, 1)
        if self.extra_state is not None:
            check_methods("extra_state", self.extra_state, "state_dict", "load_state_dict")
        if self.micro_batch is not None:
            whole("micro_batch", self.micro_batch, 1)
        if self.clip_norm is not None:
            positive("clip_norm", self.clip_norm)
        _ = self.adaptive, rate_rule(self.lr_rule)

    @property
    def schedulers(self) -> Sequence[Any]:
        """One, several or none, as a list."""
        if self.scheduler is None:
            return []
        return list(self.scheduler) if isinstance(self.scheduler, list | tuple) else [self.scheduler]

    @property
    def adaptive(self) -> BatchRange | None:
        """The range of the batch, if it is adaptive."""
        if self.batch_range is None:
            return None
        low, high = self.batch_range
        return BatchRange(initial=self.global_batch, low=low, high=high)
