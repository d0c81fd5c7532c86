"""How many instances there will be: forecasters, and how wrong they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sublet.data.csvfile import FloatArray
from sublet.domain.quantity import at_least, positive, whole
from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace

__all__ = [
    "Autoregression",
    "Drift",
    "ForecastError",
    "Forecaster",
    "Foreknown",
    "Kernel",
    "ParcaeForecast",
    "Persistence",
    "Skill",
    "forecast_error",
    "forecast_skill",
    "forecasters_for",
]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """On a straight line through now and `window` ticks ago, damped; never below 0."""

    window: int = 12
    damping: float = 0.5

    def forecast(self, history: FloatArray, steps: int) -> FloatArray:
        """The last value and a share of the mean change, times the steps ahead."""
        past = history[-self.window - 1 :]
        slope = 0.0 if len(past) < 2 else float(past[-1] - past[0]) / (len(past) - 1)  # noqa: PLR2004 - a line
        return np.asarray(np.maximum(history[-1] + self.damping * slope * np.arange(1, steps + 1), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foreknown:
    """The truth, for oracles. It ends where the record ends, so the last forecasts have fewer steps."""

    truth: FloatArray

    def forecast(self, history: FloatArray, steps: int) -> FloatArray:
        """What comes after so many ticks."""
        return self.truth[len(history) : len(history) + steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoregression:
    """An autoregression of order 1 with a constant on the last `window` ticks: of the changes, or of the levels.

    Of the changes it is the ARIMA(1, 1, 0) inside Parcae's forecaster, without the rules around it.
    """

    window: int = 60
    changes: bool = True

    def __post_init__(self) -> None:
        whole("window", self.window, 3)

    def forecast(self, history: FloatArray, steps: int) -> FloatArray:
        """Never below 0; a past that is flat or hardly there stays as it is."""
        past = history[-self.window :]
        if len(past) < 3 or np.ptp(past) == 0:  # noqa: PLR2004 - two changes
            return np.full(steps, history[-1], dtype=np.float64)
        if not self.changes:
            return np.maximum(_ar1_forecast(past, steps), 0.0)
        return np.asarray(np.maximum(past[-1] + np.cumsum(_ar1_forecast(np.diff(past), steps)), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What came after moments like this one: a Markov model of (instances, losses of late), smoothed by a kernel.

    Every past moment has a say, the more the nearer it was in both; no change has a say of `calm` moments exactly like
    this one. The answer is the weighted median of what changed within each number of steps: few moments move nothing.
    """

    memory: int = 1440  # ticks
    late: int = 10  # ticks in which losses are counted
    spread: float = 0.1  # of instances, as a share of the most ever seen, 1 at least
    spread_lost: float = 2.0  # instances
    calm: float = 5.0

    def __post_init__(self) -> None:
        whole("memory", self.memory, 1)
        whole("late", self.late, 1)
        positive("spread", self.spread)
        positive("spread_lost", self.spread_lost)
        at_least("calm", self.calm, 0.0)

    def forecast(self, history: FloatArray, steps: int) -> FloatArray:
        """Never below 0."""
        known_T = history[-self.memory - self.late :]
        moments = len(known_T) - steps  # M of them have all their steps behind them
        if moments < 1:
            return np.full(steps, history[-1], dtype=np.float64)
        fallen_T = np.cumsum(np.maximum(-np.diff(known_T, prepend=known_T[0]), 0.0))
        lost_T = fallen_T - np.concatenate([np.zeros(min(self.late, len(known_T))), fallen_T])[: len(known_T)]
        wide = max(1.0, self.spread * float(known_T.max()))
        far_M = ((known_T[:moments] - known_T[-1]) / wide) ** 2
        far_M = far_M + ((lost_T[:moments] - lost_T[-1]) / self.spread_lost) ** 2
        weight_M = np.concatenate([[self.calm], np.exp(-0.5 * far_M)])
        then_MH = sliding_window_view(known_T[1:], steps)[:moments]  # H steps ahead
        change_MH = np.vstack([np.zeros(steps), then_MH - known_T[:moments, None]])
        return np.asarray(np.maximum(known_T[-1] + _medians(change_MH, weight_M), 0.0))


def _medians(value_MH: FloatArray, weight_M: FloatArray) -> FloatArray:
    """The weighted median of each column."""
    order_MH = np.argsort(value_MH, axis=0, kind="stable")
    heap_MH = np.cumsum(weight_M[order_MH], axis=0)
    middle_H = (heap_MH < 0.5 * heap_MH[-1]).sum(axis=0)
    columns = np.arange(value_MH.shape[1])
    return np.asarray(value_MH[order_MH[middle_H, columns], columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class ParcaeForecast:
    """The forecaster that Parcae ships: ARIMA(1, 1, 0) with a constant on the last minutes, and its rules around it.

    It is here to be compared with: on the public traces it errs more than persistence. Its rules, in order: blips of up
    to three ticks are removed; all before an interior extremum is made flat; a flat past stays as it is; forecasts are
    rounded, kept within 3 of the first and within the bounds; where the forecast is flat and the past was not, losses
    are drawn at random; and after a steady rise or fall of 5 or more, rises or falls are scaled down, for good.
    """

    least: int = 8
    most: int = 32
    since: int = 0  # ticks before this one were recorded, but nothing was forecast then
    seed: int = 0

    def forecast(self, history: FloatArray, steps: int) -> FloatArray:
        """Whole numbers of instances. The first window of ticks is forecast by persistence, as in the original."""
        window = PARCAE_WINDOW.get(steps, steps)
        if len(history) <= window:
            return np.full(steps, history[-1], dtype=np.float64)
        seen = tuple(history[-window:].tolist())
        flat, ahead = _arima_ahead(seen, steps, self.least, self.most)
        lost = np.zeros(steps)
        if not flat and np.ptp(ahead) == 0:
            lost = self._chance_losses(history, window, steps)
        rise, fall = self._damping(history, window)
        past = _parcae_cleaned(seen)
        change = np.diff(np.concatenate([past[-1:], ahead]))
        ups, downs = np.maximum(change, 0.0), np.maximum(-change, 0.0) + lost
        forecast, now = np.empty(steps), float(past[-1])
        for step in range(steps):
            now = forecast[step] = float(round(now + ups[step] * rise - downs[step] * fall))
        return np.maximum(forecast, 0.0)

    def _chance_losses(self, history: FloatArray, window: int, steps: int) -> FloatArray:
        falls = np.maximum(-np.diff(history[-window - 1 :]), 0.0)
        rng = np.random.default_rng([self.seed, len(history)])
        return rng.poisson(min(falls.std(), falls.var(), falls.mean()), steps).astype(np.float64)

    def _damping(self, history: FloatArray, window: int) -> tuple[float, float]:
        """Of rises and of falls: what the last steady rise or fall so far has set; nothing ever resets it."""
        rise = fall = 0.0
        first, last = max(window + 1, self.since), len(history)
        while last >= first and not (rise and fall):  # backwards, block by block: the last word counts
            start = max(first, last - BLOCK + 1)
            seen_WT = sliding_window_view(history[start - window : last], window)  # W windows
            swings = np.ptp(seen_WT, axis=1) >= SWING  # cleaning never widens a swing
            for seen in seen_WT[np.flatnonzero(swings)[::-1]].tolist():
                up, down = _parcae_damping(tuple(seen))
                rise, fall = rise or up, fall or down
                if rise and fall:
                    break
            last = start - 1
        return rise or 1.0, fall or 1.0


PARCAE_WINDOW: Mapping[int, int] = MappingProxyType({14: 17, 12: 12, 10: 10, 9: 9, 8: 8, 7: 8, 5: 10})  # steps -> past
GROWTH = 3  # instances by which a forecast may leave its first step
BLIP = 3  # ticks
SWING = 5  # instances within a window, from which on it damps
BLOCK = 1024  # windows


@lru_cache(maxsize=4096)
def _arima_ahead(seen: tuple[float, ...], steps: int, least: int, most: int) -> tuple[bool, FloatArray]:
    """Whether the past was flat, and the forecast before chance and damping."""
    past = _parcae_cleaned(seen)
    if np.ptp(past) == 0:
        return True, np.clip(np.full(steps, past[-1]), least, most)
    ahead = np.rint(past[-1] + np.cumsum(_ar1_forecast(np.diff(past), steps)))
    return False, np.clip(np.clip(ahead, ahead[0] - GROWTH, ahead[0] + GROWTH), least, most)


@lru_cache(maxsize=4096)
def _parcae_cleaned(seen: tuple[float, ...]) -> FloatArray:
    past = np.array(seen)
    for size in range(BLIP, 0, -1):
        for at in range(len(past) - 1 - size):
            inside = past[at + 1 : at + 1 + size]
            if past[at] == past[at + 1 + size] and (inside != past[at]).all():
                past[at + 1 : at + 1 + size] = past[at]
    for extreme in (past.min(), past.max()):
        beyond = extreme < min(past[0], past[-1]) or extreme > max(past[0], past[-1])
        if beyond:
            past[: np.flatnonzero(past == extreme)[-1]] = extreme
            break
    past.flags.writeable = False
    return past


@lru_cache(maxsize=4096)
def _parcae_damping(seen: tuple[float, ...]) -> tuple[float, float]:
    """What this window sets for rises and for falls; 0 where it sets nothing."""
    past = _parcae_cleaned(seen)
    steps, swing = np.diff(past), float(np.ptp(past))
    scale = 0.5 if swing >= 10 else 0.75 if swing >= SWING else 0.0  # noqa: PLR2004 - of the original
    return scale * bool((steps >= 0).all()), scale * bool((steps <= 0).all())


def _ar1_forecast(changes: FloatArray, steps: int) -> FloatArray:
    """The next changes, by the exact likelihood of an autoregression of order 1 with a mean, on ever finer grids."""
    phi, step = 0.0, 0.995
    mu = float(changes.mean())
    for points in (399, 41, 41):
        grid = np.clip(np.linspace(phi - step, phi + step, points), -0.995, 0.995)
        likely, mean = _ar1_likelihood(changes, grid)
        best = int(np.argmax(likely))
        phi, mu, step = float(grid[best]), float(mean[best]), 2.0 * step / (points - 1)
    return np.asarray(mu + phi ** np.arange(1, steps + 1) * (changes[-1] - mu))


def _ar1_likelihood(changes: FloatArray, phi_F: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log-likelihood with the best mean and variance, and that mean, for each F = candidate coefficient."""
    count = len(changes)
    first_F = 1.0 - phi_F**2
    rest_FT = changes[1:] - phi_F[:, None] * changes[:-1]
    mean_F = (first_F * changes[0] + (1.0 - phi_F) * rest_FT.sum(axis=1)) / (first_F + (count - 1) * (1.0 - phi_F) ** 2)
    error_FT = rest_FT - ((1.0 - phi_F) * mean_F)[:, None]
    square_F = first_F * (changes[0] - mean_F) ** 2 + (error_FT**2).sum(axis=1)
    return 0.5 * np.log(first_F) - 0.5 * count * np.log(np.maximum(square_F, 1e-12)), mean_F


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
    if len(instances_T) < horizon + warm_up:
        allowed = f"at most {max(0, len(instances_T) - 1)} together for {trace.name} at {tick_s:g} s a tick"
        raise InvalidValue("horizon + warm_up", horizon + warm_up, allowed)
    return _error(instances_T, forecaster, range(warm_up, len(instances_T) - horizon + 1), horizon)


def _error(instances_T: FloatArray, forecaster: Forecaster, ticks: Sequence[int], horizon: int) -> ForecastError:
    """Over the forecasts made when so many ticks were known."""
    absolute_H = np.zeros(horizon)  # H steps ahead
    for now in ticks:
        expected_H = np.asarray(forecaster.forecast(instances_T[:now], horizon), dtype=np.float64)
        if expected_H.shape != (horizon,) or not np.isfinite(expected_H).all():
            raise InvalidValue("forecast", expected_H, f"{horizon} finite numbers")
        absolute_H += np.abs(expected_H - instances_T[now : now + horizon])
    per_step = absolute_H / len(ticks)
    return ForecastError(per_step=per_step, mean=float(per_step.mean()), forecasts=len(ticks))


# ---------------------------------------------------------------------- which one to trust

MOST_FORECASTS = 1000  # of each half; more take long and tell little more
CLEARLY = 0.98  # of the error of persistence: chance differences do not make a choice
FIRST_TICKS = 12  # known before the first forecast
PERSISTENCE = "persistence"


def forecasters_for(trace: SpotTrace) -> dict[str, Forecaster]:
    """Everyone who forecasts, by name. Parcae is bounded by a quarter and all of what was asked for, as it was."""
    most = trace.max_available * len(trace.zones)
    return {
        PERSISTENCE: Persistence(),
        "drift": Drift(),
        "parcae": ParcaeForecast(least=most // 4, most=most),
        "arima": Autoregression(),
        "ar1": Autoregression(changes=False),
        "markov": Kernel(),
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Skill:
    """Errors in both halves of a trace, by forecaster: the first half chooses, the second tells whether it holds."""

    first: Mapping[str, ForecastError]
    second: Mapping[str, ForecastError]
    chosen: str

    @property
    def default(self) -> str:
        """Whom to trust: the one that the first half chose, unless persistence erred less in the second."""
        held = self.second[self.chosen].mean <= self.second[PERSISTENCE].mean
        return self.chosen if held else PERSISTENCE


def forecast_skill(
    trace: SpotTrace, forecasters: Mapping[str, Forecaster], *, tick_s: float = 60.0, horizon: int = 12
) -> Skill:
    """Try everyone, persistence among them, on both halves. The best of the first is chosen if it is clearly better.

    No forecast of the first half is judged by a tick of the second; those of the second may know all of the first.
    """
    whole("horizon", horizon, 1)
    if PERSISTENCE not in forecasters:
        raise InvalidValue("forecasters", sorted(forecasters), f"{PERSISTENCE} among them")
    instances_T = trace.per_tick(tick_s).astype(np.float64)
    half, end = len(instances_T) // 2, len(instances_T)
    if half < FIRST_TICKS + horizon:
        allowed = f"at most {max(0, half - FIRST_TICKS)} for {trace.name}: half of it has {half} ticks of {tick_s:g} s"
        raise InvalidValue("horizon", horizon, f"{allowed}, and the first {FIRST_TICKS} are not forecast")
    first, second = (
        {name: _error(instances_T, forecaster, ticks, horizon) for name, forecaster in forecasters.items()}
        for ticks in (_spread(FIRST_TICKS, half - horizon), _spread(half, end - horizon))
    )
    best = min(first, key=lambda name: first[name].mean)
    clearly = first[best].mean < CLEARLY * first[PERSISTENCE].mean
    return Skill(first=first, second=second, chosen=best if clearly else PERSISTENCE)


def _spread(start: int, last: int) -> list[int]:
    """Ticks from start to last: all, or as many as are enough."""
    count = last - start + 1
    return [start + each * count // min(count, MOST_FORECASTS) for each in range(min(count, MOST_FORECASTS))]
