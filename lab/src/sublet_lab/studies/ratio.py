"""One policy over another on several traces: the mean, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The mean over traces, and half the width of its 95 % interval; NaN for one trace.

    >>> print(Ratio.over([1.0, 2.0], [2.0, 4.0]), Ratio.over([3.0], [4.0]))
    0.500 +- 0.000 0.750
    """

    mean: float
    off: float

    @classmethod
    def over(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Trace by trace."""
        return cls.of([one / other for one, other in zip(ours, theirs, strict=True)])

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """The ratio over each trace."""
        if len(ratios) == 1:
            return cls(mean=ratios[0], off=math.nan)
        sure = float(student.ppf(0.975, len(ratios) - 1))
        return cls(mean=fmean(ratios), off=sure * stdev(ratios) / len(ratios) ** 0.5)

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.off) else f"{self.mean:.3f} +- {self.off:.3f}"
