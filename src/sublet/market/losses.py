"""Losses ahead as a distribution: how likely a fall is at each of the next ticks, and how many instances it takes.

Three things are known to move it. Falls cluster: one makes the next more likely, for a while. Markets have a time of
day. And what has happened in this market weighs against what is usual elsewhere. An announced loss needs no chance: a
look ahead is told of it (`planning.lookahead.AnnouncedLoss`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.domain.quantity import at_least, positive
from sublet.domain.units import DAY_S, SECONDS_PER_H
from sublet.market.forecast import asked_for
from sublet.solve.arrays import Bools, Floats

Falls = tuple[tuple[int, float], ...]  # instances lost, and how likely that is; what is left to 1: none is

USUAL_TICKS, USUAL_WEIGHT = 12.0, 2.0  # between two falls where nothing was seen yet; worth so many falls
HOURS = 24
HOUR_WEIGHT = 10.0  # falls: an hour of the day that saw fewer is taken for one like the others
LEAST_CHANCE = 1e-3  # in a tick: what is less is left out
DIGITS = 2  # of a chance: markets come back to the same, which need not be looked at again


@dataclass(frozen=True, slots=True, kw_only=True)
class LossesAhead:
    """The effect of a fall on the chance of another, its duration, and whether the hour of the day counts.

    >>> calm, struck = np.full(30, 9.0), np.append(np.full(29, 9.0), 7.0)
    >>> ahead = LossesAhead(excess=0.2, half_life_ticks=5.0)
    >>> [sum(chance for _, chance in ahead.falls(history, 1, 60.0)[0]) for history in (calm, struck)]
    [0.038, 0.26]
    """

    excess: float  # chance of another fall in the tick after one, beyond what is usual
    half_life_ticks: float  # of that
    by_hour: bool = False

    def __post_init__(self) -> None:
        at_least("excess", self.excess, 0.0)
        positive("half_life_ticks", self.half_life_ticks)

    def falls(self, history: Floats, steps: int, step_s: float) -> list[Falls]:
        """For each of the next ticks. `history` has every tick up to and including now, the first at midnight."""
        asked_for(history, steps)
        lost_T = np.maximum(-np.diff(history), 0.0)
        fell_T = lost_T > 0.0
        stirred_T = self._stirred(fell_T)
        # What clustering explains is not usual: else every cluster would raise the chance of the calm after it.
        usual = max(0.0, fell_T.sum() - self.excess * float(stirred_T[:-1].sum())) + USUAL_WEIGHT
        usual /= len(fell_T) + USUAL_WEIGHT * USUAL_TICKS
        hour_H = self._by_hour(fell_T, step_s)
        decay = 0.5 ** (1.0 / self.half_life_ticks)
        share = _sizes(lost_T[fell_T], int(history[-1]))
        found = []
        for ahead in range(steps):
            hour = int((len(history) + ahead) * step_s % DAY_S // SECONDS_PER_H)
            chance = min(1.0, usual * float(hour_H[hour]) + self.excess * float(stirred_T[-1]) * decay**ahead)
            found.append(tuple((size, _rounded(chance * part)) for size, part in share if chance * part > LEAST_CHANCE))
        return found

    def _stirred(self, fell_T: Bools) -> Floats:
        """How stirred up the market is before each tick, and now: 1 right after a fall, half of it a half-life on."""
        decay, level, levels = 0.5 ** (1.0 / self.half_life_ticks), 0.0, [0.0]
        for fell in fell_T.tolist():
            level = 1.0 if fell else level * decay
            levels.append(level)
        return np.array(levels)

    def _by_hour(self, fell_T: Bools, step_s: float) -> Floats:
        if not self.by_hour or not fell_T.any():
            return np.ones(HOURS)
        hour_T = ((np.arange(1, len(fell_T) + 1) * step_s) % DAY_S // SECONDS_PER_H).astype(int)
        seen_H = np.bincount(hour_T, minlength=HOURS).astype(float)
        fell_H = np.bincount(hour_T, weights=fell_T.astype(float), minlength=HOURS)
        rate = float(fell_T.mean())
        return np.asarray((fell_H + HOUR_WEIGHT) / (seen_H * rate + HOUR_WEIGHT))


def _sizes(lost: Floats, there: int) -> list[tuple[int, float]]:
    """How many a fall takes, by those that were seen and one that took one instance; none takes more than there are."""
    if there < 1:
        return []
    sizes, counts = np.unique(np.minimum(np.append(lost, 1.0), there).astype(int), return_counts=True)
    return [(int(size), float(count) / float(counts.sum())) for size, count in zip(sizes, counts, strict=True)]


def _rounded(chance: float) -> float:
    return float(f"{chance:.{DIGITS}g}")
