"""The aims of a planner of one large job: samples alone, or samples and dollars, configuration by configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sublet.domain.quantity import at_least
from sublet.domain.units import SECONDS_PER_H
from sublet.market.losses import Falls
from sublet.perf.grids import SpotJob
from sublet.solve.arrays import Floats

ANY = -1  # configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPrices:
    """Worth of a sample and cost of an instance. Instances given back take `boot_s` to be had again.

    With a price for instances on demand, these stand in where a grid has more than there are.
    """

    usd_per_sample: float
    usd_per_h: float
    boot_s: float = 45.0  # what Bamboo measured for creating an instance
    on_demand_usd_per_h: float | None = None

    def __post_init__(self) -> None:
        at_least("usd_per_sample", self.usd_per_sample, 0.0)
        at_least("usd_per_h", self.usd_per_h, 0.0)
        at_least("boot_s", self.boot_s, 0.0)
        if self.on_demand_usd_per_h is not None:
            at_least("on_demand_usd_per_h", self.on_demand_usd_per_h, self.usd_per_h)


def short_chance(instances: int, held: int, lost: int, spare: int) -> float:
    """P(more than `spare` of those held are among the lost), which hit anyone of the instances.

    >>> short_chance(instances=4, held=2, lost=1, spare=0)
    0.5
    """
    if spare < 0:
        return 1.0
    held = min(held, instances)
    ways = sum(math.comb(held, hit) * math.comb(instances - held, lost - hit) for hit in range(min(spare, lost) + 1))
    return 1.0 - ways / math.comb(instances, lost)


class Own(NamedTuple):
    """Of `held` instances so many were lost, and so many are there to be used at once."""

    held: int
    lost: int
    there: int


class NextStates(NamedTuple):
    """Where a look ahead leads: the state to go to now, the one at the next step, and the one after a loss foretold."""

    now: int
    soon: int
    then: int


class Objective:
    """The aim of a planner: samples alone, or samples x value - dollars.

    With money every configuration is there twice. In the first it holds just its grid (S = c). In the second it holds
    all instances that are to be had (S = C + c). So spares are kept only if they are worth their rent.
    """

    def __init__(self, job: SpotJob, money: SpotPrices | None = None) -> None:
        self.job, self.money = job, money
        times = 1 if money is None else 2
        self.rate_S = np.tile(job.rate_C, times) * (1.0 if money is None else money.usd_per_sample)
        self.again_S = np.tile(job.moves.shrink_C, times)
        self.looked: dict[tuple[object, ...], NextStates] = {}  # markets come back to the same numbers
        self._kept: dict[tuple[int, int, float, int], Floats] = {}
        self._own: dict[tuple[Own, int], Floats] = {}
        self._risk: dict[tuple[int, Falls], Floats] = {}

    def pauses_s(self, was: int, now: int, *, ready_s: float = 0.0, only: int = ANY) -> Floats:
        """As for the job, and the boot of instances that were given back; `only` one configuration may be ready."""
        key = (was, now, ready_s if now < was else 0.0, only)
        if key not in self._kept:
            beyond = self.money is not None and self.money.on_demand_usd_per_h is not None
            table_CC = self.job.pauses_s(was, now, ready_s=0.0 if only != ANY else ready_s, beyond=beyond)
            if only != ANY:
                table_CC = table_CC.copy()
                table_CC[:, only] = self.job.pauses_s(was, now, ready_s=ready_s, beyond=beyond)[:, only]
            self._kept[key] = table_CC if self.money is None else self._add_boot(table_CC, was, now, self.money)
        return self._kept[key]

    def pauses_of_own_s(self, own: Own, now: int) -> Floats:
        """Where it is known what was lost of what was held: targets beyond what is there wait for a boot."""
        key = (own, now)
        if key not in self._own:
            boot_s = 0.0 if self.money is None else self.money.boot_s
            use_C = self.job.use_C
            table_CC = self.job.after_loss_s(own.held, own.lost) if own.lost else self.job.lossless_s()
            table_CC = np.where(use_C <= now, table_CC + boot_s * (use_C > own.there), np.inf)
            self._own[key] = table_CC if self.money is None else np.block([[table_CC] * 2] * 2)
        return self._own[key]

    def _add_boot(self, table_CC: Floats, was: int, now: int, money: SpotPrices) -> Floats:
        use_C, lost, gained = self.job.use_C, max(0, was - now), max(0, now - was)
        short_CC = use_C > use_C[:, None] + gained  # the usual case: nothing lost, or none of ours
        short_CC = short_CC.astype(np.float64)
        if lost:
            chance = {
                (held, spare): short_chance(max(was, held), held, lost, spare)
                for held in set(use_C.tolist())
                for spare in range(-1, min(lost, held) + 1)
            }
            spare_CC = np.clip(use_C[:, None] - use_C, -1, np.minimum(lost, use_C)[:, None])
            held_CC = np.broadcast_to(use_C[:, None], spare_CC.shape)
            pairs = zip(held_CC.ravel().tolist(), spare_CC.ravel().tolist(), strict=True)
            short_CC = np.array([chance[pair] for pair in pairs]).reshape(spare_CC.shape)
        beyond_CC = use_C > np.maximum(now, use_C - lost + gained)[:, None]
        return np.block([[table_CC + short_CC * money.boot_s] * 2, [table_CC + beyond_CC * money.boot_s] * 2])

    def pay_HS(self, future: Sequence[int], lasts_s: Sequence[float]) -> Floats | None:  # noqa: N802 - its axes
        """Rent of each step, by state; None without money."""
        if self.money is None:
            return None
        use_C = self.job.use_C
        have_H1 = np.array(future)[:, None]
        over_HC = np.maximum(use_C - have_H1, 0) * (self.money.on_demand_usd_per_h or 0.0)
        grid_HC = np.minimum(use_C, have_H1) * self.money.usd_per_h + over_HC
        all_HC = have_H1 * self.money.usd_per_h + over_HC
        return np.hstack([grid_HC, all_HC]) * (np.array(lasts_s)[:, None] / SECONDS_PER_H)

    def risk_S(self, now: int, falls: Falls) -> Floats:  # noqa: N802 - its axis
        """The cost, by state, of going on after the losses that may come, with the rest of the same grid."""
        key = (now, falls)
        if key not in self._risk:
            every_C = np.arange(len(self.job.grids))
            pause_C = np.zeros(len(every_C))
            for lost, chance in falls:
                left = max(0, now - lost)
                cut_C = [self.job.cut(config, left) for config in every_C.tolist()]
                after_C = self.job.pauses_s(now, left)[every_C, cut_C]
                pause_C += chance * np.where(self.job.use_C <= now, after_C, 0.0)
            self._risk[key] = self.rate_S * np.tile(pause_C, len(self.rate_S) // len(every_C))
        return self._risk[key]

    @cached_property
    def payback_s(self) -> float:
        """How long the thriftiest grid has to run until it has earned its start; 0 without money or without profit."""
        if self.money is None:
            return 0.0
        thrifty = 1 + int((self.job.rate_C[1:] / self.job.use_C[1:]).argmax())
        worth = float(self.rate_S[thrifty])
        profit = worth - int(self.job.use_C[thrifty]) * self.money.usd_per_h / SECONDS_PER_H
        start_s = self.money.boot_s + float(self.job.moves.grow_C[thrifty])
        return start_s * worth / profit if profit > 0 else 0.0

    def split(self, state: int) -> tuple[int, int | None]:
        """Configuration, and how many instances are held; None for all."""
        config = state % len(self.job.grids)
        every = self.money is None or state > config
        return config, None if every else int(self.job.use_C[config])

    def advance(self, state: int, left_s: float, to: int, was: int, now: int) -> tuple[float, float, float]:
        """One step: what was earned, what was paid for it, and what is left of the pause."""
        pause_s = float(self.pauses_s(was, now)[state, to])
        if pause_s > 0:
            left_s = pause_s + (float(self.again_S[to]) if left_s > 0 else 0.0)
        earned = float(self.rate_S[to]) * max(0.0, self.job.step_s - left_s)
        pay = self.pay_HS([now], [self.job.step_s])
        return earned, 0.0 if pay is None else float(pay[0, to]), max(0.0, left_s - self.job.step_s)
