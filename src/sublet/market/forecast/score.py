"""The number of instances to come: every forecaster, by name, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from sublet import data, plugins
from sublet.domain.quantity import whole
from sublet.errors import InvalidValue, MissingData, MissingExtra
from sublet.market.forecast.arima import Arima, Autoregression
from sublet.market.forecast.markov import Kernel
from sublet.market.forecast.parcae import ParcaeForecast
from sublet.market.forecast.simple import Drift, Forecaster, Foreknown, Persistence
from sublet.market.forecast.skilled import Skilled
from sublet.market.spot import SpotTrace
from sublet.market.traces import TRACES
from sublet.solve.arrays import Floats

__all__ = [
    "DEFAULT",
    "FORECASTERS",
    "MOMENTS",
    "MOMENTS_OF_MANY",
    "PERSISTENCE",
    "Arima",
    "Autoregression",
    "Drift",
    "ErrorRow",
    "ForecastError",
    "Forecaster",
    "Foreknown",
    "Kernel",
    "ParcaeForecast",
    "Persistence",
    "Skilled",
    "error_row",
    "forecast_error",
    "forecast_errors",
    "forecaster",
    "forecasters_for",
    "readable_traces",
]

MOMENTS = 1000  # of a trace at which everyone forecasts; more take long and tell little more
MOMENTS_OF_MANY = 300  # of each of many traces
FORECASTERS = "sublet.forecasters"  # the group of entry points
PERSISTENCE, DEFAULT = "persistence", "skilled"
FIRST_TICKS = 12  # known before the first forecast that is judged


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorRow:
    """One trace: the error of every forecaster, and why one is left out."""

    trace: str
    horizon: int
    moments: int
    errors: Mapping[str, ForecastError]
    left_out: Mapping[str, str]

    @property
    def excess(self) -> float:
        """Instances by which the default errs more than persistence: the worst of one step, the last step and all."""
        ours, still = self.errors[DEFAULT], self.errors[PERSISTENCE]
        return max(ours.mean - still.mean, *(float(ours.per_step[h] - still.per_step[h]) for h in (0, -1)))

    @property
    def departs(self) -> bool:
        """Whether the default ever erred otherwise than persistence: else it was that, as its rule is, throughout."""
        return bool((self.errors[DEFAULT].per_step != self.errors[PERSISTENCE].per_step).any())

    @property
    def ok(self) -> bool:
        """Whether the default is nowhere worse than persistence."""
        return self.excess <= 0.0


def error_row(trace: SpotTrace, *, horizon: int = 12, moments: int = MOMENTS) -> ErrorRow:
    """Every forecaster at the same moments; one that needs something not installed is left out."""
    whole("moments", moments, 1)
    errors: dict[str, ForecastError] = {}
    left_out: dict[str, str] = {}
    for name, each in forecasters_for(trace).items():
        try:
            errors |= forecast_errors(trace, {name: each}, horizon=horizon, moments=moments)
        except MissingExtra as error:
            left_out[name] = str(error).replace("\n  next:", ":")
    forecasts = errors[PERSISTENCE].forecasts
    return ErrorRow(trace=trace.name, horizon=horizon, moments=forecasts, errors=errors, left_out=left_out)


def readable_traces(*, bundled_only: bool = False) -> Iterator[str]:
    """Names of the traces whose files are here."""
    for name, facts in TRACES.items():
        try:
            here = data.locate(facts.file).exists()
        except MissingData:
            here = False
        if here and (facts.bundled or not bundled_only):
            yield name


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
