"""The least dollars for so many samples, and the most samples per dollar, with perfect foresight.

By the Lagrangian: a plan with so many samples for C keeps *worth x samples - C*, and at no worth more than the best
path keeps. So each worth bounds C from below, and the one at which the best path makes as many bounds it best.

Were changes free, no plan could be cheaper: that is a bound. The path that pays the expected cost of changes is none.
It is laid before the lost instances are known, so a lucky run, or one that sees them, may be cheaper; and where a pause
is longer than a step it may not be the best of its kind (`best_path`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.objective import Objective, SpotPrices
from sublet.solve.arrays import Floats
from sublet.solve.lookahead import best_path
from sublet_lab.rides.bounds import steps_of
from sublet_lab.rides.record import Record

DEAREST = 64.0  # times what a sample costs at the least: there as many are made as can be
HALVINGS, FREE_HALVINGS = 10, 40  # of the range of worths; a path takes as long as a ride
DIGITS = 1e-6  # relative, of samples per dollar


class Best(NamedTuple):
    """The net worth of the samples, and their number."""

    kept_usd: float
    samples: float

    def usd(self, usd_per_sample: float) -> float:
        """Paid."""
        return usd_per_sample * self.samples - self.kept_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """One job on one record, at one price. Instances that were given back take `boot_s`."""

    job: SpotJob
    record: Record
    usd_per_h: float
    boot_s: float

    def best(self, usd_per_sample: float) -> Best:
        """The path that keeps most at this worth of a sample."""
        prices = SpotPrices(usd_per_sample=usd_per_sample, usd_per_h=self.usd_per_h, boot_s=self.boot_s)
        ahead = steps_of(Objective(self.job, prices), self.record)
        path = best_path(ahead, SUSPENDED)
        assert ahead.pay_HC is not None
        usd = float(ahead.pay_HC[np.arange(len(path.config_H)), path.config_H].sum())
        return Best(path.value, (path.value + usd) / usd_per_sample)

    def best_were_changes_free(self, usd_per_sample: float) -> Best:
        """The same, where changes and boots take no time."""
        seconds: dict[int, float] = {}
        for moment in self.record.moments():
            seconds[moment.now] = seconds.get(moment.now, 0.0) + moment.lasts_s
        kept_C: Floats = usd_per_sample * self.job.rate_C - self.job.use_C * self.usd_per_h / SECONDS_PER_H
        kept_usd = samples = 0.0
        for now, lasts_s in seconds.items():
            config = int(np.where(self.job.use_C <= now, kept_C, -np.inf).argmax())
            kept_usd, samples = kept_usd + float(kept_C[config]) * lasts_s, samples + self.job.rate_C[config] * lasts_s
        return Best(kept_usd, float(samples))

    def least_usd(self, samples: float) -> float:
        """So many samples cost no less."""
        return self._least_usd(self.best, samples, HALVINGS)

    def least_usd_were_changes_free(self, samples: float) -> float:
        """Nor, whatever changes cost, less than this."""
        return self._least_usd(self.best_were_changes_free, samples, FREE_HALVINGS)

    def most_per_usd(self) -> float:
        """Samples per dollar of the path that has most of them: at a worth of their price it keeps nothing."""
        usd_per_sample = DEAREST * self._cheapest
        while True:
            best = self.best(usd_per_sample)
            cheaper = best.usd(usd_per_sample) / best.samples if best.samples else usd_per_sample
            if cheaper >= usd_per_sample * (1.0 - DIGITS):
                return 1.0 / usd_per_sample
            usd_per_sample = cheaper

    @property
    def _cheapest(self) -> float:
        """Dollars per sample in the thriftiest grid."""
        use_C, rate_C = self.job.use_C[1:], self.job.rate_C[1:]
        return float((use_C / rate_C).min()) * self.usd_per_h / SECONDS_PER_H

    def _least_usd(self, best_at: Callable[[float], Best], samples: float, halvings: int) -> float:
        low, high = self._cheapest, DEAREST * self._cheapest
        least_usd = 0.0
        for _ in range(halvings):
            worth = (low * high) ** 0.5
            best = best_at(worth)
            least_usd = max(least_usd, worth * samples - best.kept_usd)
            low, high = (low, worth) if best.samples >= samples else (worth, high)
        return least_usd
