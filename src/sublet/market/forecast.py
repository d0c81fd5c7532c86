"""How many spot instances there will be: the protocol of a forecaster, and the forecast that the supply stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats


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
