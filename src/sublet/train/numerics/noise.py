"""The gradient noise scale, and what it says about batch and learning rate.

A gradient over b samples has the expected squared norm |G|^2 + S / b. From the norms over a small and a large number of
samples follow |G|^2 and S, and the noise scale S / |G|^2: the batch, in samples, beyond which more samples per step
begin to be wasted (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1). Both are
smoothed before they are divided, because single figures are noisy and may be negative. The scale grows while training
goes on: how fast is the slope of its logarithm over the samples trained, in which the past counts less and less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from sublet.domain.quantity import whole
from sublet.errors import InvalidValue

KEPT = 0.95  # of the average at each measurement: about twenty of them count
SLOPE_KEPT = 0.99  # the same of the slope, which is the difference of much noisier figures
ENOUGH = 10  # measurements before anything is concluded
EAGERNESS = 1.25  # the batch changes only if it grows by this much, so that it does not change all the time
AT_ONCE = 2.0  # and by at most this much
HALVES_EVERY = 400  # steps: two halves take at most as long as the whole twice, so this costs at most 0.25 %
FIRST_HALVES_EVERY = 5  # of the first ENOUGH, where they too cost at most 0.25 % of all steps there will be


@dataclass(slots=True, kw_only=True)
class Noise:
    """Two averages, and how many measurements are in them; and a line through the logarithm of their quotient."""

    signal: float = 0.0  # |G|^2
    scatter: float = 0.0  # S
    count: int = 0
    scales: int = 0  # points of the line
    mean_at: float = 0.0  # samples trained
    mean_log: float = 0.0
    var_at: float = 0.0
    cov: float = 0.0

    def add(self, small: float, small_inverse: float, large: float, batch: int, *, at: float = 0.0) -> None:
        """Squared norms: mean of small gradients (mean 1 / samples: `small_inverse`), and that of the whole batch.

        `at` is how many samples have been trained.
        """
        spread = small_inverse - 1.0 / batch
        if spread <= 0.0:
            return
        scatter = (small - large) / spread
        signal = large - scatter / batch
        if not (math.isfinite(scatter) and math.isfinite(signal)):
            return  # a step whose gradients overflowed says nothing, and an average would never forget it
        kept = min(KEPT, self.count / (self.count + 1.0))  # a plain mean until there are enough
        self.signal = kept * self.signal + (1.0 - kept) * signal
        self.scatter = kept * self.scatter + (1.0 - kept) * scatter
        self.count += 1
        if self.scale:
            self._continue_line(at, math.log(self.scale))

    def _continue_line(self, at: float, log_scale: float) -> None:
        kept = min(SLOPE_KEPT, self.scales / (self.scales + 1.0))
        ahead, above = at - self.mean_at, log_scale - self.mean_log
        self.mean_at += (1.0 - kept) * ahead
        self.mean_log += (1.0 - kept) * above
        self.var_at = kept * (self.var_at + (1.0 - kept) * ahead * ahead)
        self.cov = kept * (self.cov + (1.0 - kept) * ahead * above)
        self.scales += 1

    @property
    def growth(self) -> float:
        """Growth of the logarithm of the scale per sample trained; 0 while it is unknown."""
        return self.cov / self.var_at if self.scales >= ENOUGH and self.var_at > 0.0 else 0.0

    @property
    def scale(self) -> float | None:
        """In samples; None while it is unknown."""
        if self.count < ENOUGH or self.signal <= 0.0 or self.scatter < 0.0:
            return None
        scale = self.scatter / self.signal
        return scale if math.isfinite(scale) else None


def halves_due(step: int, measured: int, steps_in_all: int) -> bool:
    """Whether a worker that takes its whole batch at once takes two halves in this step, to see what noise they have.

    Over a training all of them cost at most 0.5 % of its time, whatever a half takes. A short one has too few to
    conclude anything.
    """
    early = steps_in_all >= ENOUGH * HALVES_EVERY
    if early and measured < ENOUGH:
        return step % FIRST_HALVES_EVERY == 0
    every = HALVES_EVERY if early else HALVES_EVERY // 2
    return step % every == every - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """An adaptive batch: from `low` to `high`, with the learning rate that the user chose for `initial`."""

    initial: int
    low: int
    high: int

    def __post_init__(self) -> None:
        whole("batch_range", self.low, 1)
        if not self.low <= self.initial <= self.high:
            raise InvalidValue("batch_range", (self.low, self.high), f"around global_batch = {self.initial}")

    def clamped(self, batch: float) -> int:
        """The batch, or what is nearest to it in the range."""
        return int(min(max(batch, self.low), self.high))

    def grown(self, batch: int, scale: float | None) -> int:
        """The next batch: towards the noise scale, never smaller."""
        if scale is None:
            return batch
        target = self.clamped(min(scale, AT_ONCE * batch))
        return target if target >= EAGERNESS * batch else batch

    def gain(self, batch: int, scale: float | None) -> float:
        """How many steps at the initial batch one step at `batch` is worth: between 1 and batch / initial.

        That of AdaScale (Johnson et al. 2020): for SGD the learning rate is multiplied by it, for Adam and its kin by
        its square root.
        """
        if scale is None or batch == self.initial:
            return 1.0
        return (scale / self.initial + 1.0) / (scale / batch + 1.0)


class RateRule(StrEnum):
    """The factor of the learning rate."""

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
    """The rule of this name."""
    try:
        return RateRule(name)
    except ValueError:
        raise InvalidValue("lr_rule", name, f"one of {', '.join(RateRule)}") from None
