"""So many samples by a deadline, for the least money: spot while it lasts, on demand only as far as time demands it.

The worth of a sample is not given here but found: the least value at which the job, on the recent instances, would be
as fast as the rest of its work requires. At that value the same program that looks ahead decides about grids, spares
and instances on demand. A constant value is what the best plan in hindsight has, so that fast hours make up for slow
ones.

In any case the deadline is kept if it can be: when the fastest grid, on demand alone, has just enough time to finish,
it starts.

This is a replay of its own and no policy of the kernel yet. It remembers what it reached of the speed at which it
should have settled. A grid of which a part is on demand goes back to spot, instance by instance, where it can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sublet.domain.quantity import at_least, positive
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible
from sublet.market.forecast import Persistence
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.lookahead import AnnouncedLoss, Contender, worth_a_look
from sublet.planning.objective import ANY, Objective, SpotPrices, short_chance
from sublet.solve.arrays import Floats
from sublet_lab.rides.bounds import path_value
from sublet_lab.rides.record import Record, RideMoment
from sublet_lab.rides.ride import RideResult

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

    def __post_init__(self) -> None:
        positive("samples", self.samples)
        positive("within_s", self.within_s)
        at_least("on_demand_usd_per_h", self.on_demand_usd_per_h, self.usd_per_h)

    def refuse_if_hopeless(self, job: SpotJob) -> None:
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


def certain_samples(job: SpotJob, within_s: float) -> float:
    """The certain samples: the fastest grid from the start, on instances that are never lost."""
    fastest = job.fastest(int(job.use_C.max()))
    return float(job.rate_C[fastest]) * max(0.0, within_s - _start_s(job, fastest))


def _start_s(job: SpotJob, config: int) -> float:
    return float(job.pauses_s(0, int(job.use_C.max()))[SUSPENDED, config])


def least_usd(job: SpotJob, record: Record, plan: Punctual) -> float:
    """No plan costs less, in hindsight either: the best value of a sample in the Lagrangian of the deadline.

    Each plan with `samples` at a cost of C has a net of value x samples - C, and at no value more than the best path.
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


# ---------------------------------------------------------------------- the replay


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The knowledge at a moment: instances of every tick so far and of now, and how far the job is."""

    history: Floats
    was: int
    held: int  # configuration
    left_s: float  # of its pause
    at_s: float
    samples: float
    warned: tuple[AnnouncedLoss, ...] = ()
    ready: tuple[int, float] = (ANY, 0.0)

    @property
    def now(self) -> int:
        return int(self.history[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """The rented instances."""

    spot: int = 0
    on_demand: int = 0

    def short_chance(self, moment: RideMoment, use: int) -> float:
        """P(more are needed than are there)."""
        lost, gained = max(0, moment.was - moment.now), max(0, moment.now - moment.was)
        there = self.spot + self.on_demand + gained
        return short_chance(max(moment.was, self.spot), self.spot, lost, there - use)


def replay_punctual(job: SpotJob, plan: Punctual, record: Record) -> RideResult:
    """Over a record. Instances that were not held, and are needed, take a boot; losses hit any that could be held."""
    plan.refuse_if_hopeless(job)
    known = np.array(record.capacity, dtype=np.float64)
    agent, fleet = _PunctualAgent(plan, job), _Fleet()
    held, left_s = SUSPENDED, 0.0
    samples = usd = on_demand_s = suspended_s = 0.0
    changes, shapes = 0, [(0.0, SUSPENDED)]
    for moment in record.moments():
        tick, over_s = divmod(moment.at_s, record.step_s)
        history = known[: int(tick) + 1] if not over_s else np.append(known[: int(tick) + 1], moment.now)
        seen = _Seen(history=history, was=moment.was, held=held, left_s=left_s, at_s=moment.at_s, samples=samples)
        config, wanted = agent.decide(seen)
        was = moment.was if fleet.spot else moment.now  # without spot nothing is lost
        pause_s = float(job.pauses_s(was, moment.now, beyond=True)[held, config])
        pause_s += plan.boot_s * fleet.short_chance(moment, int(job.use_C[config]))
        gained, left_s = job.advance(left_s, config, pause_s, moment.lasts_s)
        samples += gained
        fleet, held = wanted, config
        usd_per_h = fleet.spot * plan.usd_per_h + fleet.on_demand * plan.on_demand_usd_per_h
        usd += usd_per_h * moment.lasts_s / SECONDS_PER_H
        on_demand_s += fleet.on_demand * moment.lasts_s
        suspended_s += moment.lasts_s * (config == SUSPENDED)
        changes += pause_s > 0
        if config != shapes[-1][1]:
            shapes.append((moment.at_s, config))
    return RideResult(
        samples=samples,
        usd=usd,
        on_demand_h=on_demand_s / SECONDS_PER_H,
        changes=changes,
        suspended_s=suspended_s,
        shapes=tuple(shapes),
        decision_s=(),
    )


class _PunctualAgent:
    def __init__(self, plan: Punctual, job: SpotJob) -> None:
        self._plan, self._job, self._values = plan, job, _Values(plan, job)
        self._objective: dict[int, Objective] = {}
        self._ahead = Contender(Persistence(), 10, gaps=2.5)
        self._state, self._level, self._waits = SUSPENDED, 0, False
        self._full, self._at_s, self._speed = 0.0, 0.0, 0.0  # samples as settled, until then; speed since
        self._last = False  # whether it is too late for anything but the fastest

    def decide(self, seen: _Seen) -> tuple[int, _Fleet]:
        todo, left_s = self._plan.samples - seen.samples, self._plan.within_s - seen.at_s
        if todo <= 0 or left_s <= 0:
            self._state = SUSPENDED
            return SUSPENDED, _Fleet()
        fastest = self._job.fastest(int(self._job.use_C.max()))
        self._last = self._last or left_s < self._reserve_s(seen, fastest, todo)
        if self._last:
            return fastest, _Fleet(on_demand=int(self._job.use_C[fastest]))
        level = self._values.level(seen.history, todo / left_s / self._share_reached(seen))
        self._speed = self._values.settled(level, seen.now)
        if level != self._level or seen.now != seen.was or self._waits or worth_a_look(seen.history):
            plan = self._ahead.look(self._at(level), seen, self._state, seen.left_s)
            self._state, self._waits, self._level = plan.now, plan.soon != plan.now, level
        config, hold = self._at(level).split(self._state)
        spot = seen.now if hold is None else min(hold, seen.now)
        return config, _Fleet(spot=spot, on_demand=max(0, int(self._job.use_C[config]) - spot))

    def _share_reached(self, seen: _Seen) -> float:
        """Share of the speed at which it should have settled that was reached: pauses, and changes not worth while."""
        self._full += self._speed * (seen.at_s - self._at_s)
        self._at_s = seen.at_s
        prior = PRIOR_S * float(self._job.rate_C.max())
        return min(1.0, max(LEAST_REACHED, (REACHED * prior + seen.samples) / (prior + self._full)))

    def _reserve_s(self, seen: _Seen, fastest: int, todo: float) -> float:
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
