"""So many samples by a deadline, for the least money: spot while it lasts, on demand only as far as time demands it.

What a sample is worth is not given here but found: the least value at which the job, on the instances of late, would be
as fast as what is left to do requires. At that value the same program that looks ahead decides about grids, spares and
instances on demand. A constant value is what the best plan in hindsight has, so that fast hours make up for slow ones.

Whatever happens, the deadline is kept if it can be: when the fastest grid, on demand alone, has just enough time to
finish, it starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.quantity import at_least, positive
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible
from sublet.market.forecast.score import Persistence
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.lookahead import Contender, worth_a_look
from sublet.planning.objective import Objective, SpotPrices
from sublet.solve.arrays import Floats
from sublet.spot.policies import Observation, SpotAgent, SpotDecision, path_value
from sublet.spot.record import Record

__all__ = ["Punctual", "certain_samples", "least_usd"]

LEVEL = 1.1  # between two values tried
REACHED, PRIOR_S = 0.92, 1800.0  # share of the settled speed, until it has been seen, worth so long of seeing
LEAST_REACHED = 0.5
TIME_IS_SHORT = 111  # exit code
LATE_TICKS = 240  # of history, to say what instances will be like


@dataclass(frozen=True, slots=True, kw_only=True)
class Punctual:
    """`samples` within so many seconds of the start."""

    samples: float
    within_s: float
    usd_per_h: float
    on_demand_usd_per_h: float
    boot_s: float = 45.0
    blind: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        positive("samples", self.samples)
        positive("within_s", self.within_s)
        at_least("on_demand_usd_per_h", self.on_demand_usd_per_h, self.usd_per_h)

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:  # noqa: ARG002 - the history has it
        """Refused where not even instances on demand would be fast enough."""
        certain = certain_samples(job, self.within_s)
        if self.samples > certain:
            raise Infeasible(
                f"{self.samples:,.0f} samples of {job.name} in {self.within_s / SECONDS_PER_H:g} h",
                binding="the most that the fastest grid does, on demand from the start,",
                needed=self.samples,
                available=math.floor(certain),
                hint="give it more time, or ask for less",
                exit_code=TIME_IS_SHORT,
            )
        return _PunctualAgent(self, job)


def certain_samples(job: SpotJob, within_s: float) -> float:
    """What can be promised: the fastest grid from the start, on instances that are never lost."""
    fastest = job.fastest(int(job.use_C.max()))
    return float(job.rate_C[fastest]) * max(0.0, within_s - _start_s(job, fastest))


def _start_s(job: SpotJob, config: int) -> float:
    return float(job.pauses_s(0, int(job.use_C.max()))[SUSPENDED, config])


def least_usd(job: SpotJob, record: Record, plan: Punctual) -> float:
    """No plan costs less, in hindsight either: the best value of a sample in the Lagrangian of the deadline.

    Everyone who has `samples` at a cost of C has a net of value x samples - C, and at no value more than the best path.
    """
    ticks = min(len(record.capacity), math.ceil(plan.within_s / record.step_s))
    within = Record(capacity=record.capacity[:ticks], step_s=record.step_s, before=record.before)
    best = 0.0
    for value in _Values(plan, job).usd_per_sample[::2]:  # any value gives a bound
        money = SpotPrices(
            usd_per_sample=value,
            usd_per_h=plan.usd_per_h,
            boot_s=plan.boot_s,
            on_demand_usd_per_h=plan.on_demand_usd_per_h,
        )
        best = max(best, value * plan.samples - path_value(Objective(job, money), within))
    return best


class _Values:
    """Values of a sample to choose from, and how fast the job settles at each with so many instances."""

    def __init__(self, plan: Punctual, job: SpotJob) -> None:
        per_s = plan.usd_per_h / SECONDS_PER_H
        low = per_s / float((job.rate_C[1:] / job.use_C[1:]).max())
        high = plan.on_demand_usd_per_h / SECONDS_PER_H * _steepest(job)
        count = max(2, math.ceil(math.log(max(high / low, LEVEL)) / math.log(LEVEL)) + 2)
        self.usd_per_sample = [low * LEVEL**level for level in range(count)]
        most = int(job.use_C.max())
        have_N1 = np.arange(most + 1)[:, None]
        over = plan.on_demand_usd_per_h / SECONDS_PER_H
        rent_NC = np.minimum(job.use_C, have_N1) * per_s + np.maximum(job.use_C - have_N1, 0) * over
        self.rate_VN: Floats = np.stack(
            [job.rate_C[(value * job.rate_C - rent_NC).argmax(axis=1)] for value in self.usd_per_sample]
        )

    def settled(self, level: int, now: int) -> float:
        """Samples per second in the grid that is best if nothing changes."""
        return float(self.rate_VN[level, min(now, self.rate_VN.shape[1] - 1)])

    def level(self, history: Floats, rate: float) -> int:
        """The least at which the job would be so fast, half on the instances of now and half on those of late."""
        have_T = np.minimum(history[-LATE_TICKS:].astype(int), self.rate_VN.shape[1] - 1)
        settled_V = 0.5 * self.rate_VN[:, have_T[-1]] + 0.5 * self.rate_VN[:, have_T].mean(axis=1)
        enough = np.flatnonzero(settled_V >= rate)
        return int(enough[0]) if len(enough) else len(self.usd_per_sample) - 1


def _steepest(job: SpotJob) -> float:
    """Instances for one more sample per second where that takes most: on the way to the fastest grid."""
    order = np.argsort(job.use_C, kind="stable")
    best = np.maximum.accumulate(job.rate_C[order])
    use, at = np.unique(job.use_C[order][::-1], return_index=True)
    rate = best[::-1][at]
    top = int(rate.argmax())  # the least that is as fast as anything
    return float(((use[top] - use[:top]) / (rate[top] - rate[:top])).max())


class _PunctualAgent:
    def __init__(self, plan: Punctual, job: SpotJob) -> None:
        self._plan, self._job, self._values = plan, job, _Values(plan, job)
        self._objective: dict[int, Objective] = {}
        self._ahead = Contender(Persistence(), 10, gaps=2.5)
        self._state, self._level, self._waits = SUSPENDED, 0, False
        self._full, self._at_s, self._speed = 0.0, 0.0, 0.0  # samples as settled, until then; speed since
        self._last = False  # whether it is too late for anything but the fastest

    def decide(self, seen: Observation) -> SpotDecision:
        todo, left_s = self._plan.samples - seen.samples, self._plan.within_s - seen.at_s
        if todo <= 0 or left_s <= 0:
            self._state = SUSPENDED
            return SpotDecision(config=SUSPENDED, hold=0, on_demand=0)
        fastest = self._job.fastest(int(self._job.use_C.max()))
        self._last = self._last or left_s < self._reserve_s(seen, fastest, todo)
        if self._last:
            return SpotDecision(config=fastest, hold=0, on_demand=int(self._job.use_C[fastest]))
        level = self._values.level(seen.history, todo / left_s / self._share_reached(seen))
        self._speed = self._values.settled(level, seen.now)
        if level != self._level or seen.now != seen.was or self._waits or worth_a_look(seen.history):
            plan = self._ahead.look(self._at(level), seen, self._state, seen.left_s)
            self._state, self._waits, self._level = plan.now, plan.soon != plan.now, level
        config, hold = self._at(level).split(self._state)
        return SpotDecision(config=config, hold=hold)

    def _share_reached(self, seen: Observation) -> float:
        """Share of the speed at which it should have settled that was reached: pauses, and changes not worth while."""
        self._full += self._speed * (seen.at_s - self._at_s)
        self._at_s = seen.at_s
        prior = PRIOR_S * float(self._job.rate_C.max())
        return min(1.0, max(LEAST_REACHED, (REACHED * prior + seen.samples) / (prior + self._full)))

    def _reserve_s(self, seen: Observation, fastest: int, todo: float) -> float:
        """Time that the fastest needs, started at the next tick, after a loss in between."""
        most = int(self._job.use_C.max())
        pause_s = max(_start_s(self._job, fastest), float(self._job.pauses_s(most, most)[seen.held, fastest]))
        again_s = float(self._job.moves.shrink_C[fastest])
        return todo / float(self._job.rate_C[fastest]) + pause_s + again_s + self._plan.boot_s + self._job.step_s

    def _at(self, level: int) -> Objective:
        if level not in self._objective:
            money = SpotPrices(
                usd_per_sample=self._values.usd_per_sample[level],
                usd_per_h=self._plan.usd_per_h,
                boot_s=self._plan.boot_s,
                on_demand_usd_per_h=self._plan.on_demand_usd_per_h,
            )
            self._objective[level] = Objective(self._job, money)
        return self._objective[level]
