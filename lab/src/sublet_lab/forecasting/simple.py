"""Forecasts along a straight line, and from the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.domain.quantity import at_least, whole
from sublet.market.forecast import asked_for, bounded
from sublet.solve.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """On a straight line through now and a few ticks ago, damped."""

    most: int | None = None
    window: int = 12
    damping: float = 0.5

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)
        whole("window", self.window, 1)
        at_least("damping", self.damping, 0.0)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """The last value and a share of the mean change, times the steps ahead."""
        asked_for(history, steps)
        past = history[-self.window - 1 :]
        slope = 0.0 if len(past) < 2 else float(past[-1] - past[0]) / (len(past) - 1)
        return bounded(history[-1] + self.damping * slope * np.arange(1, steps + 1), self.most)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foreknown:
    """The truth, for oracles. It ends where the record ends, so the last forecasts have fewer steps."""

    truth: Floats

    def forecast(self, history: Floats, steps: int) -> Floats:
        """The forecast after so many ticks."""
        return self.truth[len(history) : len(history) + steps]
