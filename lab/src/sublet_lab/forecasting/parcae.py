"""The forecaster that Parcae ships, to compare with: an ARIMA on the last minutes, and a set of rules around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sublet.domain.quantity import whole
from sublet.market.forecast import asked_for, bounded
from sublet.solve.arrays import Floats
from sublet_lab.forecasting.arima import ar1_ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class ParcaeForecast:
    """As published with Parcae: an ARIMA on the last minutes, and a set of rules around it.

    The ARIMA(1, 1, 0) has a constant. The rules, in order: blips of up to three ticks are removed; all before an
    interior extremum is made flat; a flat past stays as it is. Forecasts are rounded, kept within 3 of the first and
    within the bounds. Where the forecast is flat and the past was not, losses are drawn at random. After a steady rise
    or fall of 5 or more, rises or falls are scaled down, for good. On the public traces all this errs more than
    persistence.
    """

    most: int | None = 32
    least: int | None = None  # a quarter of `most`, as in the original: 8 of 32
    since: int = 0  # ticks before this one were recorded, but nothing was forecast then
    seed: int = 0

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)
        whole("least", 0 if self.least is None else self.least)
        whole("since", self.since)
        whole("seed", self.seed)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """Whole numbers of instances. The first window of ticks is forecast by persistence, as in the original."""
        asked_for(history, steps)
        window = PARCAE_WINDOW.get(steps, steps)
        if len(history) <= window:
            return bounded(np.full(steps, history[-1], dtype=np.float64), self.most)
        seen = tuple(history[-window:].tolist())
        least, most = (
            (self.most or 0) // 4 if self.least is None else self.least,
            np.inf if self.most is None else self.most,
        )
        flat, ahead = _arima_ahead(seen, steps, least, most)
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
        return bounded(forecast, self.most)

    def _chance_losses(self, history: Floats, window: int, steps: int) -> Floats:
        falls = np.maximum(-np.diff(history[-window - 1 :]), 0.0)
        rng = np.random.default_rng([self.seed, len(history)])
        return rng.poisson(min(falls.std(), falls.var(), falls.mean()), steps).astype(np.float64)

    def _damping(self, history: Floats, window: int) -> tuple[float, float]:
        """Damping of rises and of falls by the last steady rise or fall so far; nothing ever resets it."""
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
def _arima_ahead(seen: tuple[float, ...], steps: int, least: int, most: float) -> tuple[bool, Floats]:
    """Whether the past was flat, and the forecast before chance and damping."""
    past = _parcae_cleaned(seen)
    if np.ptp(past) == 0:
        return True, np.clip(np.full(steps, past[-1]), least, most)
    ahead = np.rint(past[-1] + np.cumsum(ar1_ahead(np.diff(past), steps)))
    return False, np.clip(np.clip(ahead, ahead[0] - GROWTH, ahead[0] + GROWTH), least, most)


@lru_cache(maxsize=4096)
def _parcae_cleaned(seen: tuple[float, ...]) -> Floats:
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
    """Damping that this window sets for rises and for falls; 0 where it sets nothing."""
    past = _parcae_cleaned(seen)
    steps, swing = np.diff(past), float(np.ptp(past))
    scale = 0.5 if swing >= 10 else 0.75 if swing >= SWING else 0.0
    return scale * bool((steps >= 0).all()), scale * bool((steps <= 0).all())
