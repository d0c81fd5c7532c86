"""How many instances there will be: forecasters, and how wrong they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sublet.data.csvfile import FloatArray
from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace

__all__ = ["ForecastError", "Forecaster", "Persistence", "forecast_error"]


class Forecaster(Protocol):
    """A value with one verb; it keeps no memory between calls, so any history can be asked about in any order."""

    def forecast(self, history: FloatArray, steps: int) -> FloatArray:
        """Instances at each of the next `steps` ticks; `history` holds every tick up to and including now."""
        ...


@dataclass(frozen=True, slots=True)
class Persistence:
    """What is there now stays. Hard to beat: preemptions come in bulk and without a season."""

    def forecast(self, history: FloatArray, steps: int) -> FloatArray:
        """The last value, repeated."""
        return np.full(steps, history[-1], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastError:
    """Mean absolute error in instances, for each step ahead and over all steps."""

    per_step: FloatArray
    mean: float
    forecasts: int


def forecast_error(
    trace: SpotTrace, forecaster: Forecaster, *, tick_s: float = 60.0, horizon: int = 12, warm_up: int = 12
) -> ForecastError:
    """Forecast at every tick that has `warm_up` ticks behind it and `horizon` ahead, all zones together."""
    whole("horizon", horizon, 1)
    whole("warm_up", warm_up, 1)
    instances_T = trace.per_tick(tick_s).astype(np.float64)  # T ticks
    forecasts = len(instances_T) - horizon - warm_up + 1
    if forecasts < 1:
        allowed = f"at most {max(0, len(instances_T) - 1)} together for {trace.name} at {tick_s:g} s a tick"
        raise InvalidValue("horizon + warm_up", horizon + warm_up, allowed)
    absolute_H = np.zeros(horizon)  # H steps ahead
    for now in range(warm_up, warm_up + forecasts):
        expected_H = np.asarray(forecaster.forecast(instances_T[:now], horizon), dtype=np.float64)
        if expected_H.shape != (horizon,) or not np.isfinite(expected_H).all():
            raise InvalidValue("forecast", expected_H, f"{horizon} finite numbers")
        absolute_H += np.abs(expected_H - instances_T[now : now + horizon])
    per_step = absolute_H / forecasts
    return ForecastError(per_step=per_step, mean=float(per_step.mean()), forecasts=forecasts)
