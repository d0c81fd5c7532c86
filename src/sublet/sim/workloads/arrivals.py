"""When jobs arrive: laws of arrival, each a value with one verb. All have the mean rate that they are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sublet.domain.quantity import at_least
from sublet.domain.units import DAY_S, SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats

__all__ = ["Arrivals", "Bursty", "Daily", "Poisson"]


class Arrivals(Protocol):
    """A law of arrival."""

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """The first `n_jobs` arrivals after time 0, ascending, at `rate_per_h` jobs per hour in the long run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Independent arrivals: exponential gaps."""

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """See Arrivals."""
        return np.cumsum(rng.exponential(SECONDS_PER_H / rate_per_h, n_jobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty:
    """Batches, as from parameter sweeps: Poisson bursts of a geometric number of jobs that arrive at one instant."""

    mean_burst: float = 5.0

    def __post_init__(self) -> None:
        at_least("mean_burst", self.mean_burst, 1.0)

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """See Arrivals."""
        burst_mean_gap_s = self.mean_burst * SECONDS_PER_H / rate_per_h
        # A geometric burst ends after each job with the same chance, so whether a job opens a burst is a coin toss.
        opens = rng.random(n_jobs) < 1.0 / self.mean_burst
        opens[0] = True
        return np.cumsum(np.where(opens, rng.exponential(burst_mean_gap_s, n_jobs), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Daily:
    """A daily swing: Poisson arrivals whose rate is mean x (1 + swing x cos(2π (t - peak) / 24 h))."""

    swing: float = 0.8
    peak_h: float = 14.0  # mid-afternoon, on a clock whose midnight is time 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.swing <= 1.0:
            raise InvalidValue("swing", self.swing, "between 0 and 1")
        at_least("peak_h", self.peak_h, 0.0)

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """See Arrivals. By thinning: draw at the highest rate, keep each with probability rate / highest rate."""
        highest_per_s = rate_per_h * (1.0 + self.swing) / SECONDS_PER_H
        kept: list[Floats] = []
        n_kept, now_s = 0, 0.0
        while n_kept < n_jobs:
            n_drawn = math.ceil(1.1 * (n_jobs - n_kept) * (1.0 + self.swing)) + 16  # usually enough in one pass
            times_s = now_s + np.cumsum(rng.exponential(1.0 / highest_per_s, n_drawn))
            phase = 2.0 * math.pi * (times_s - self.peak_h * SECONDS_PER_H) / DAY_S
            keep = rng.random(n_drawn) * (1.0 + self.swing) < 1.0 + self.swing * np.cos(phase)
            kept.append(times_s[keep])
            n_kept += int(keep.sum())
            now_s = float(times_s[-1])
        return np.concatenate(kept)[:n_jobs]
