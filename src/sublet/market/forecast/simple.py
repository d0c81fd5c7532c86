"""The protocol of a forecaster, and those that need nothing but a glance at the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sublet.domain.quantity import at_least, whole
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats

__all__ = ["Drift", "Forecaster", "Foreknown", "Persistence", "asked_for", "bounded"]


class Forecaster(Protocol):
    """A value with one verb; what it answers depends on its arguments alone, so any history can be asked about.

    A forecaster under `sublet.forecasters` is a frozen dataclass with the field `most`: how many instances there can be
    at all, None where it is unknown. No forecast is above it, and none below 0.
    """

    def forecast(self, history: Floats, steps: int) -> Floats:
        """Instances at each of the next `steps` ticks; `history` holds every tick up to and including now."""
        ...


def bounded(ahead: Floats, most: int | None) -> Floats:
    """Not below 0, not above what there can be."""
    return np.asarray(np.clip(ahead, 0.0, np.inf if most is None else most), dtype=np.float64)


def asked_for(history: Floats, steps: int) -> None:
    """Refuse what no forecaster can answer: no past, a past with a hole in it, no future."""
    whole("steps", steps, 1)
    if history.ndim != 1 or not len(history):
        raise InvalidValue("history", history.shape, "one row of at least one tick")
    if not np.isfinite(history).all():
        raise InvalidValue(
            "history", history[~np.isfinite(history)][0], "finite: fill holes before asking for a forecast"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """Forecast that the present supply stays."""

    most: int | None = None

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """The last value, repeated."""
        asked_for(history, steps)
        return bounded(np.full(steps, history[-1], dtype=np.float64), self.most)


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
        slope = 0.0 if len(past) < 2 else float(past[-1] - past[0]) / (len(past) - 1)  # noqa: PLR2004 - a line
        return bounded(history[-1] + self.damping * slope * np.arange(1, steps + 1), self.most)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foreknown:
    """The truth, for oracles. It ends where the record ends, so the last forecasts have fewer steps."""

    truth: Floats

    def forecast(self, history: Floats, steps: int) -> Floats:
        """The forecast after so many ticks."""
        return self.truth[len(history) : len(history) + steps]
