"""A step that does not fit into memory is made smaller: fewer samples at a time, accumulated to the same batch.

What did not fit is dropped without a trace, and its samples are given again. The sum over a step is the same up to the
order of its additions: equal to the bit to a run that took so few samples at a time from that step on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sublet.errors import OutOfMemory
from sublet.train.numerics.footprint import Footprint, Gauge
from sublet.wire.profile import FITS

__all__ = ["SLIMMER", "Cut", "Memory", "samples_that_fit"]

SMALLER = (
    "make a sample smaller (shorter, of lower resolution), train in bfloat16, recompute activations "
    "(torch.utils.checkpoint), or ask for GPUs with more memory"
)
SLIMMER = (
    "an optimizer that keeps less (SGD without momentum, Adafactor, 8-bit Adam), foreach=False, a smaller model, "
    "or GPUs with more memory"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """So many samples at a time did not fit, and so many are tried next."""

    samples: int
    micro_batch: int

    @property
    def advice(self) -> str:
        """To whoever could do something about it."""
        return (
            f"sublet: {self.samples} samples at a time did not fit\n  next: train.session(..., micro_batch="
            f"{self.micro_batch}), or s.step(lambda: ...) with a function that computes the loss, which survives it"
        )


def samples_that_fit() -> int:
    """At a time on this kind of GPU, as the controller knows it from an earlier run; 0 = it does not."""
    told = os.environ.get(FITS, "")
    return int(told) if told.isdecimal() else 0


class Memory:
    """How many samples this worker takes at a time; None = all of its share."""

    def __init__(self, micro_batch: int | None, gauge: Gauge | None = None, fits: int = 0) -> None:
        self.footprint = Footprint(gauge)
        self._fits = fits  # as an earlier run found out, until this one knows better; 0 = nobody says so
        self._most = micro_batch  # as the script has it, or as more did not fit
        self._expected = fits or None  # as more will not fit

    @property
    def micro_batch(self) -> int | None:
        """None = all of its share."""
        if self._expected is None or self._most is None:
            return self._most if self._expected is None else self._expected
        return min(self._most, self._expected)

    def expect(self, largest: int) -> int:
        """Between two steps: how many will fit, if that is below the `largest` there can be; the peak since the last.

        A batch that grows is then accumulated at once, and nothing is dropped to find out.
        """
        peak = self.footprint.look()
        if not largest:  # the batch is fixed: what fitted before does, and more is not needed
            return peak
        most = self.footprint.most() or self._fits
        self._expected = most if 0 < most < largest else None
        return peak

    def cut(self, samples: int) -> Cut:
        """So many did not fit: half of them from now on; OutOfMemory if that is none."""
        self.footprint.forget_open()
        if samples <= 1:
            raise OutOfMemory(samples, hint=SMALLER)
        self.limit(samples // 2)
        return Cut(samples, samples // 2)

    def limit(self, micro_batch: int) -> None:
        """More than that did not fit somewhere; 0 = nobody says so."""
        if micro_batch:
            self._most = min(micro_batch, self._most or micro_batch)
