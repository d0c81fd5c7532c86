"""Autoregressions: ARIMA(1, 1, 0) with drift as statsmodels fits it, and our own exact fit, thirty times as fast.

Both maximise the same exact likelihood; on the bundled traces their forecasts differ by less than 0.05 instances, which
a test holds them to. The fast one serves where there is a forecast every tick (Parcae's rules, the choice by skill).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sublet.domain.quantity import whole
from sublet.errors import MissingExtra
from sublet.market.forecast import asked_for, bounded
from sublet.solve.arrays import Floats

LEAST_TICKS = 3  # two changes; fewer say nothing about how one follows another


@dataclass(frozen=True, slots=True, kw_only=True)
class Arima:
    """ARIMA(1, 1, 0) with drift on the last hour, fitted anew at each tick by statsmodels."""

    most: int | None = None
    window: int = 60  # ticks

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)
        whole("window", self.window, LEAST_TICKS)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """A past that is flat, too short, or that cannot be fitted stays as it is."""
        asked_for(history, steps)
        past = history[-self.window :]
        ahead = None if len(past) < LEAST_TICKS or np.ptp(past) == 0 else _fit_and_forecast(past, steps)
        return bounded(np.full(steps, history[-1]) if ahead is None else ahead, self.most)


def _fit_and_forecast(past: Floats, steps: int) -> Floats | None:
    """None where the fit fails; statsmodels warns about starts and convergence, which the forecast itself tells."""
    arima, blas = _statsmodels()
    with warnings.catch_warnings(), blas.limit(limits=1):  # a matrix of 2 x 2 on many threads: 56 ms become 4.7 s
        warnings.simplefilter("ignore")
        try:
            model = arima(np.array(past), order=(1, 1, 0), trend="t", concentrate_scale=True)  # variance in closed form
            ahead = model.fit(cov_type="none").forecast(steps)
        except np.linalg.LinAlgError:
            return None
    return np.asarray(ahead, dtype=np.float64) if np.isfinite(ahead).all() else None


@cache
def _statsmodels() -> tuple[Any, Any]:
    """Its ARIMA, and what keeps its linear algebra on one thread. A second to import, so only when it is used."""
    try:
        from statsmodels.tsa.arima.model import ARIMA
        from threadpoolctl import ThreadpoolController
    except ImportError:
        raise MissingExtra("statsmodels, which fits ARIMA,", "forecast", place="'./lab[{}]'") from None
    return ARIMA, ThreadpoolController()


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoregression:
    """Back to the mean of the last hour, as fast as it was of late: an autoregression of order 1."""

    most: int | None = None
    window: int = 60  # ticks
    changes: bool = False  # of the changes and not of the levels: the fast twin of Arima

    def __post_init__(self) -> None:
        whole("most", 0 if self.most is None else self.most)
        whole("window", self.window, LEAST_TICKS)

    def forecast(self, history: Floats, steps: int) -> Floats:
        """A past that is flat or hardly there stays as it is."""
        asked_for(history, steps)
        past = history[-self.window :]
        if len(past) < LEAST_TICKS or np.ptp(past) == 0:
            ahead = np.full(steps, history[-1], dtype=np.float64)
        elif self.changes:
            ahead = past[-1] + np.cumsum(ar1_ahead(np.diff(past), steps))
        else:
            ahead = ar1_ahead(past, steps)
        return bounded(ahead, self.most)


def ar1_ahead(past: Floats, steps: int) -> Floats:
    """The next values, by the exact likelihood of an autoregression of order 1 with a mean, on ever finer grids."""
    phi, step = 0.0, 0.995
    mu = float(past.mean())
    for points in (399, 41, 41):
        grid = np.clip(np.linspace(phi - step, phi + step, points), -0.995, 0.995)
        likely, mean = _ar1_likelihood(past, grid)
        best = int(np.argmax(likely))
        phi, mu, step = float(grid[best]), float(mean[best]), 2.0 * step / (points - 1)
    return np.asarray(mu + phi ** np.arange(1, steps + 1) * (past[-1] - mu))


def _ar1_likelihood(past: Floats, phi_F: Floats) -> tuple[Floats, Floats]:
    """Log-likelihood with the best mean and variance, and that mean, for each F = candidate coefficient."""
    count = len(past)
    first_F = 1.0 - phi_F**2
    rest_FT = past[1:] - phi_F[:, None] * past[:-1]
    mean_F = (first_F * past[0] + (1.0 - phi_F) * rest_FT.sum(axis=1)) / (first_F + (count - 1) * (1.0 - phi_F) ** 2)
    error_FT = rest_FT - ((1.0 - phi_F) * mean_F)[:, None]
    square_F = first_F * (past[0] - mean_F) ** 2 + (error_FT**2).sum(axis=1)
    return 0.5 * np.log(first_F) - 0.5 * count * np.log(np.maximum(square_F, 1e-12)), mean_F
