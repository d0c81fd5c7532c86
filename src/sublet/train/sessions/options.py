"""Options of a training run, beside model, optimizer and dataset; and the loss that `loss=` computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sublet.domain.quantity import positive, whole
from sublet.errors import InvalidValue
from sublet.train.numerics.noise import BatchRange, RateRule, rate_rule
from sublet.train.sessions.fitness import check_methods
from sublet.train.sessions.tracking import Tracker, check_trackers

# Of the last output and the batch; with reduction="counted" the sum, and over how much
Loss = Callable[[Any, Any], Any]


def model_input(batch: Any) -> Any:
    """The first of a tuple or list; else the batch itself, such as a mapping or a tensor."""
    return batch[0] if isinstance(batch, tuple | list) else batch


def loss_of(model: Callable[[Any], Any], loss: Loss, batch: Any, *, counts: bool) -> tuple[torch.Tensor, Any]:
    """The loss over a micro-batch, and its count (None unless it `counts`)."""
    found = loss(model(model_input(batch)), batch)
    if not counts:
        return found, None
    if not isinstance(found, tuple) or len(found) != 2:  # noqa: PLR2004 - a pair
        allowed = "a pair with reduction='counted': the sum, and how much it is a sum over"
        raise InvalidValue("loss=", type(found).__name__, allowed)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything but the batch has a default.

    With `batch_range` the batch is adaptive: the gradient noise scale is measured and the batch grows towards it, or
    follows the controller's plan. The learning rate then follows by `lr_rule` (`noise`), and schedulers step once
    per `global_batch` samples instead of once per step.
    """

    global_batch: int  # samples per step over all workers; the initial batch if it is adaptive
    epochs: int | None = None  # of the whole training; s.epochs() needs it, s.batches(epochs=...) can say it instead
    steps: int | None = None  # of the whole training, in place of epochs
    scheduler: Any = None  # a learning rate scheduler, or several; stepped by the session
    scheduler_every: str = "step"  # after every optimizer step, or every "epoch"
    seed: int = 0  # of the order of samples, and of newcomers' random numbers
    micro_batch: int | None = None  # samples that one worker takes at a time; more are accumulated
    batch_range: tuple[int, int] | None = None  # None = the batch is fixed
    lr_rule: str = RateRule.ADASCALE  # how the learning rate follows the batch: adascale, sqrt, linear or none
    loss: Loss | None = None  # loss(output, batch), of what the model gives; then s.step(batch) computes it (`losses`)
    probe: bool = True  # look at the loss of the first micro-batch; not where a framework counts what it is given
    strict: bool = False  # what that look warns of is an error
    reduction: str | None = None  # what s.step() is given: the "mean" over samples of a micro-batch, or their "sum", or
    # "counted": s.step(loss, counted=n), a sum over n things (tokens, say); the step is by the mean over all of them;
    # a `loss=` then returns both, the sum and n
    scaler: torch.amp.GradScaler | None = None  # for half precision; s.step() is given the plain loss all the same
    clip_norm: float | None = None  # longest gradient, over the global batch
    clip_value: float | None = None  # largest number in it, either way
    collate: Callable[[list[Any]], Any] | None = None  # None = torch's default_collate
    shards: int = 16  # of a stream, times the loader's num_workers; no fewer than workers at the widest
    extra_state: Any = None  # something with state_dict and load_state_dict that belongs to the state
    device: torch.device | str | None = None  # where batches go; None = they stay where they are
    tracker: Any = None  # where s.log() goes: one, or several, of `sublet.integrations`; None = nowhere
    checkpoint_dir: Path | str | None = None  # None = $SUBLET_CHECKPOINT_DIR, and none without it

    def __post_init__(self) -> None:
        for name in ("global_batch", "epochs", "steps", "shards", "micro_batch"):
            if (number := getattr(self, name)) is not None:
                whole(name, number, 1)
        for name in ("clip_norm", "clip_value"):
            if (limit := getattr(self, name)) is not None:
                positive(name, limit)
        if self.steps is not None:
            if self.epochs is not None:
                raise InvalidValue(
                    "steps", self.steps, f"said alone: epochs={self.epochs} says the same in other words"
                )
            if self.batch_range is not None:
                raise InvalidValue("steps", self.steps, "epochs=N with batch_range: what a step takes is not fixed")
        one_of("scheduler_every", self.scheduler_every, ("step", "epoch"))
        one_of("reduction", self.reduction or "mean", ("mean", "sum", "counted"))
        if self.sums and self.batch_range is not None:
            allowed = "'mean' with batch_range: a sum grows with the batch by itself"
            raise InvalidValue("reduction", self.reduction, allowed)
        if self.loss is not None and not callable(self.loss):
            raise InvalidValue("loss", type(self.loss).__name__, "a function of the output and the batch")
        if self.scaler is not None and not isinstance(self.scaler, torch.amp.GradScaler):
            raise InvalidValue("scaler", type(self.scaler).__name__, "a torch.amp.GradScaler")
        if self.extra_state is not None:
            check_methods("extra_state", self.extra_state, "state_dict", "load_state_dict")
        _ = self.adaptive, rate_rule(self.lr_rule), self.trackers

    @property
    def sums(self) -> bool:
        """Whether losses are sums over samples, not means."""
        return self.reduction in ("sum", "counted")

    @property
    def counts(self) -> bool:
        """Whether each comes with what it is a sum over."""
        return self.reduction == "counted"

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        """One, several or none."""
        return check_trackers(self.tracker)

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


def one_of(field: str, given: str, names: tuple[str, ...]) -> None:
    """One of these words."""
    if given not in names:
        raise InvalidValue(field, given, " or ".join(repr(name) for name in names))
