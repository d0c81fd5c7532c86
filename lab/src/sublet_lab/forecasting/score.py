"""The errors of every forecaster, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from sublet import plugins
from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.market.forecast import Forecaster
from sublet.market.spot import SpotTrace
from sublet.solve.arrays import Floats

FORECASTERS = "sublet.forecasters"  # the group of entry points
PERSISTENCE, DEFAULT = "persistence", "skilled"
FIRST_TICKS = 12  # known before the first forecast that is judged


def forecaster(name: str, *, most: int | None = None) -> Forecaster:
    """The forecaster that is registered as `name`; `most` instances are all there can be."""
    make = cast(Callable[..., Forecaster], plugins.load(FORECASTERS, name))
    return make(most=most)


def forecasters_for(trace: SpotTrace) -> dict[str, Forecaster]:
    """Every forecaster, by name, bounded by what was asked for in all zones of the trace."""
    most = trace.max_available * len(trace.zones)
    return {name: forecaster(name, most=most) for name in plugins.names(FORECASTERS)}


# ---------------------------------------------------------------------- how wrong they are


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastError:
    """Mean absolute error in instances, for each step ahead and over all steps."""

    per_step: Floats
    mean: float
    forecasts: int


def forecast_error(
    trace: SpotTrace, of: Forecaster, *, tick_s: float = 60.0, horizon: int = 12, warm_up: int = FIRST_TICKS
) -> ForecastError:
    """The error of one forecaster over all zones, at every tick with `warm_up` ticks behind and `horizon` ahead."""
    return forecast_errors(trace, {"": of}, tick_s=tick_s, horizon=horizon, warm_up=warm_up)[""]


def forecast_errors(
    trace: SpotTrace,
    forecasters: Mapping[str, Forecaster],
    *,
    tick_s: float = 60.0,
    horizon: int = 12,
    warm_up: int = FIRST_TICKS,
    moments: int | None = None,
) -> dict[str, ForecastError]:
    """Everyone at the same moments: all, or `moments` of them spread over the trace.

    No forecast knows a tick after the moment at which it is made: each is handed the ticks up to then and no more.
    """
    whole("horizon", horizon, 1)
    whole("warm_up", warm_up, 1)
    instances_T = trace.per_tick(tick_s).astype(np.float64)  # T ticks
    if len(instances_T) < horizon + warm_up:
        allowed = f"at most {max(0, len(instances_T) - 1)} together for {trace.name} at {tick_s:g} s a tick"
        raise InvalidValue("horizon + warm_up", horizon + warm_up, allowed)
    ticks = _spread(warm_up, len(instances_T) - horizon, moments)
    return {name: _error(instances_T, each, ticks, horizon) for name, each in forecasters.items()}


def _spread(first: int, last: int, most: int | None) -> Sequence[int]:
    """Ticks from first to last: all, or as many as are enough."""
    count = last - first + 1
    if most is None or count <= most:
        return range(first, last + 1)
    return [first + each * count // most for each in range(most)]


def _error(instances_T: Floats, of: Forecaster, ticks: Iterable[int], horizon: int) -> ForecastError:
    """Over the forecasts made when so many ticks were known."""
    absolute_H, forecasts = np.zeros(horizon), 0  # H steps ahead
    for now in ticks:
        expected_H = np.asarray(of.forecast(instances_T[:now], horizon), dtype=np.float64)
        if expected_H.shape != (horizon,) or not np.isfinite(expected_H).all():
            raise InvalidValue("forecast", expected_H, f"{horizon} finite numbers")
        absolute_H += np.abs(expected_H - instances_T[now : now + horizon])
        forecasts += 1
    per_step = absolute_H / forecasts
    return ForecastError(per_step=per_step, mean=float(per_step.mean()), forecasts=forecasts)
