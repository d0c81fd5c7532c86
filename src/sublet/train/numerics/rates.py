"""What becomes of the learning rate while the batch is another one than it was chosen for."""

from __future__ import annotations

import math
from enum import StrEnum

from sublet.errors import InvalidValue
from sublet.train.numerics.noise import BatchRange

__all__ = ["RateRule", "rate_rule"]


class RateRule(StrEnum):
    """By what the learning rate is multiplied."""

    ADASCALE = "adascale"  # by the gain that the measured noise allows; its root for optimizers with `betas`
    SQRT = "sqrt"  # by the root of how many times the batch is larger
    LINEAR = "linear"  # by how many times it is larger
    NONE = "none"  # it stays

    def factor(self, batches: BatchRange, batch: int, noise: float | None, *, rooted: bool) -> float:
        """At this batch; `rooted` is an optimizer that divides by the root of squared gradients: Adam and its kin."""
        match self:
            case RateRule.ADASCALE:
                gain = batches.gain(batch, noise)
                return math.sqrt(gain) if rooted else gain
            case RateRule.SQRT:
                return math.sqrt(batch / batches.initial)
            case RateRule.LINEAR:
                return batch / batches.initial
            case RateRule.NONE:
                return 1.0


def rate_rule(name: str) -> RateRule:
    """By its name."""
    try:
        return RateRule(name)
    except ValueError:
        raise InvalidValue("lr_rule", name, f"one of {', '.join(RateRule)}") from None
