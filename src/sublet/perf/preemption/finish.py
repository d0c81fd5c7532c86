"""When a job ends, with how sure that is: the finish time under reclaims as a distribution, not as its mean alone.

Without a hit, a job of W seconds of work takes W' (its checkpoints are written all the same). With hits L per second it
takes W' + c_1 + ... + c_N, with N a Poisson number of mean L W': the chance that nothing happens is exact. The cost of
a hit is taken to have the mean that makes the mean of all of it exact (`Toll.kept_C`), and the variance that follows
from pauses and what is redone (`Toll.varies_C`). Given N, the end is taken to be lognormal, as is how far the speed may
be from what is believed. Many hits make it normal, few leave it with a tail: one run in ten is hit, and that is p95.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from sublet.perf.preemption.cycles import RARE, Toll
from sublet.solve.arrays import Floats

__all__ = ["Finish", "finish_of"]

NORMAL = NormalDist()
CERTAIN = 1e-9  # standard deviation of the logarithm of what does not vary
TERMS = 60.0  # hits beyond which their number is taken to be one lognormal with all the rest
TAIL = 8.0  # standard deviations of a number of hits: what is beyond has no weight
MOST_LOOKS = 120
CLOSE = 1e-12  # of a logarithm: a quantile is so much above, so that rounding does not put it below
SAME = 1e-14  # of a chance
ROOT_2 = math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Finish:
    """A mixture by the number of hits: weights, and mean and standard deviation of the logarithm of the seconds."""

    mean_s: float
    terms: tuple[tuple[float, float, float], ...]

    def quantile_s(self, share: float) -> float:
        """By when so many of all runs have ended.

        It lies between the earliest and the latest of the terms' own. There, by the regula falsi that halves the weight
        of an end that stays (Illinois), and by halving at every third look, for steps: a page asks this of every job.
        """
        z = NORMAL.inv_cdf(share)
        ends = [mid + wide * z for _, mid, wide in self.terms]
        low, high = min(ends), max(ends)
        if len(ends) == 1:
            return math.exp(high + CLOSE)
        below, above = self._chance_by_log(low) - share, self._chance_by_log(high) - share
        for look in range(MOST_LOOKS):
            if high - low <= CLOSE or not below < 0.0 < above:
                break
            at = 0.5 * (low + high) if look % 3 == 2 else (low * above - high * below) / (above - below)  # noqa: PLR2004 - every third
            found = self._chance_by_log(at) - share
            if abs(found) < SAME:
                return math.exp(at + CLOSE)
            if found < 0.0:
                low, below, above = at, found, above / 2
            else:
                high, above, below = at, found, below / 2
        return math.exp((high if below < 0.0 else low) + CLOSE)

    def _chance_by_log(self, log_s: float) -> float:
        return sum(weight * 0.5 * math.erfc((mid - log_s) / (ROOT_2 * wide)) for weight, mid, wide in self.terms)


def finish_of(work_s: float, toll: Toll, *, spread: float = 0.0, at: int = 0) -> Finish | None:
    """When a job of so many undisturbed seconds ends in shape `at` of these; None if it never does.

    `spread` is the standard deviation of the logarithm of its speed. Cost: O(terms), at most some hundred.

    >>> calm = finish_of(3600.0, Toll.nothing(1), spread=0.1)
    >>> [round(calm.quantile_s(share)) for share in (0.1, 0.5, 0.9)]
    [3167, 3600, 4092]
    """
    kept, best = float(toll.kept_C[at]), float(toll.best_C[at])
    if not kept > 0.0 or not math.isfinite(work_s):
        return None
    if work_s <= 0.0:
        return Finish(0.0, ((1.0, -math.inf, 1.0),))
    calm_s, mean_s = work_s / best, work_s / kept
    hits, varies = float(toll.hits_C[at]) * calm_s, float(toll.varies_C[at]) * work_s
    if hits < RARE or mean_s <= calm_s:
        return Finish(mean_s, (_term(1.0, mean_s, 0.0, spread),))
    if hits > TERMS:
        return Finish(mean_s, (_term(1.0, mean_s, varies, spread),))
    each_s, each_varies = (mean_s - calm_s) / hits, max(0.0, varies / hits - ((mean_s - calm_s) / hits) ** 2)
    most = math.ceil(hits + TAIL * math.sqrt(hits) + TAIL)
    weights = _poisson(hits, most)
    terms = [_term(weight, calm_s + n * each_s, n * each_varies, spread) for n, weight in enumerate(weights)]
    return Finish(mean_s, tuple(terms))


def _term(weight: float, mean_s: float, varies: float, spread: float) -> tuple[float, float, float]:
    own = math.log1p(varies / mean_s**2)
    return weight, math.log(mean_s) - 0.5 * own, max(math.sqrt(own + spread**2), CERTAIN)


def _poisson(mean: float, most: int) -> Sequence[float]:
    many = np.arange(most + 1.0)
    logs: Floats = many * math.log(mean) - mean - np.concatenate(([0.0], np.cumsum(np.log(many[1:]))))
    weights = np.exp(logs)
    found: list[float] = (weights / weights.sum()).tolist()
    return found
