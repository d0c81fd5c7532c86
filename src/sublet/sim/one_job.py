"""One job on a spot market, event by event: samples, dollars, changes, and how long decisions took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.quantity import at_least
from sublet.domain.units import SECONDS_PER_H
from sublet.market.spot import SpotTrace
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.objective import ANY, short_chance
from sublet.spot.measured import SPOT_USD_PER_H
from sublet.spot.policies import Observation, SpotDecision, SpotPolicy
from sublet.spot.record import Record

__all__ = ["RunResult", "capacity_of", "record_of", "run_on_market"]

BOOT_S = 45.0  # what Bamboo measured for creating an instance


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of it."""

    samples: float
    usd: float
    on_demand_h: float  # instance-hours
    changes: int
    suspended_s: float
    config_T: tuple[int, ...]
    decision_s: tuple[float, ...]

    @property
    def samples_per_usd(self) -> float:
        """0 where nothing was paid."""
        return self.samples / self.usd if self.usd else 0.0


def capacity_of(trace: SpotTrace, *, step_s: float = 60.0) -> list[int]:
    """Instances at every tick, all zones together, the last instant included."""
    ticks = int(trace.span_s // step_s) + 1
    return [sum(trace.value_at(zone, tick * step_s) for zone in trace.zones) for tick in range(ticks)]


def record_of(trace: SpotTrace, *, most: int | None = None, step_s: float = 60.0) -> Record:
    """Instances at every tick and at every change between ticks, all zones together, `most` at most."""
    limit = most if most is not None else trace.max_available * len(trace.zones)
    capacity = tuple(min(each, limit) for each in capacity_of(trace, step_s=step_s))
    in_zone: dict[str, int] = {}
    between: dict[float, int] = {}
    for change in trace.events(0.0, len(capacity) * step_s):
        in_zone[change.zone] = change.available
        if change.t_s % step_s:
            between[change.t_s] = min(sum(in_zone.values()), limit)
    return Record(capacity=capacity, step_s=step_s, between=tuple(between.items()))


def run_on_market(  # noqa: PLR0913 - one argument per knob
    job: SpotJob,
    policy: SpotPolicy,
    market: Record | Sequence[int],
    *,
    before: Sequence[int] = (),
    notice_s: float = 0.0,
    usd_per_h: float = SPOT_USD_PER_H,
    on_demand_usd_per_h: float | None = None,
    boot_s: float = BOOT_S,
    clock: Callable[[], float] = time.process_time,
) -> RunResult:
    """Run a policy. What a market was like before its start, pilots may learn from; the job starts after it.

    Losses are announced `notice_s` ahead. What was prepared since then shortens the restart that it was prepared for.

    A choice that does not fit the instances there are loses pipelines; if not one is left it becomes one pipeline of
    all of them, or none where that is no configuration. With a price for them, instances on demand fill up instead.
    Instances that were not held, and are needed, take `boot_s`; losses hit anyone of all that could be held.
    """
    at_least("usd_per_h", usd_per_h, 0.0)
    if not isinstance(market, Record):
        market = Record(capacity=tuple(market), before=tuple(before), step_s=job.step_s)
    known = np.array([*market.before, *market.capacity], dtype=np.float64)
    agent = policy.start(job, market.before)
    fleet = _Fleet(spot=int(market.before[-1]) if market.before else 0)
    beyond = on_demand_usd_per_h is not None
    held, left_s = SUSPENDED, 0.0
    samples = usd = on_demand_s = suspended_s = 0.0
    changes, configs, spent = 0, [], []
    making, since_s = ANY, 0.0
    for place, moment in enumerate(market.moments(notice_s)):
        choice = SpotDecision(config=held, prepare=making)
        if moment.on_tick or not policy.blind:
            tick = len(market.before) + moment.tick
            history = known[: tick + (not policy.blind or not tick)]
            if not moment.on_tick:
                history = np.append(history, moment.now)
            was = int(history[-2]) if policy.blind and len(history) > 1 else moment.was
            ready = (making, moment.at_s - since_s) if making != ANY else (ANY, 0.0)
            seen = Observation(
                history=history,
                was=was,
                held=held,
                left_s=left_s,
                first=not place,
                at_s=moment.at_s,
                on_tick=moment.on_tick,
                warned=moment.warned,
                ready=ready,
                samples=samples,
            )
            started_s = clock()
            choice = agent.decide(seen)
            spent.append(clock() - started_s)
        config = choice.config if beyond else _cut(job, choice.config, moment.now)
        wanted = fleet.wanted(choice, int(job.use_C[config]), moment.now)
        if choice.pause_s is None:
            was = moment.was if fleet.spot else moment.now  # who holds nothing on spot loses nothing
            ready_s = moment.at_s - since_s if config == making else 0.0
            pause_s = float(job.pauses_s(was, moment.now, ready_s=ready_s, beyond=beyond)[held, config])
            pause_s += boot_s * fleet.short_chance(moment.was, moment.now, int(job.use_C[config]))
            gained, left_s = job.advance(left_s, config, pause_s, moment.lasts_s)
            changed = pause_s > 0
        else:
            left_s, changed = choice.pause_s or left_s, choice.pause_s > 0
            gained = float(job.rate_C[config]) * max(0.0, moment.lasts_s - left_s)
            left_s = max(0.0, left_s - moment.lasts_s)
        if not moment.warned or choice.prepare != making or moment.now < moment.was:
            making, since_s = choice.prepare if moment.warned else ANY, moment.at_s
        samples += gained * choice.speed
        fleet = wanted
        rent_usd_per_h = fleet.spot * usd_per_h + fleet.on_demand * (on_demand_usd_per_h or 0.0)
        usd += rent_usd_per_h * moment.lasts_s / SECONDS_PER_H
        on_demand_s += fleet.on_demand * moment.lasts_s
        suspended_s += moment.lasts_s * (config == SUSPENDED)
        changes += changed
        if moment.on_tick:
            configs.append(config)
        held = config
    return RunResult(
        samples=samples,
        usd=usd,
        on_demand_h=on_demand_s / SECONDS_PER_H,
        changes=changes,
        suspended_s=suspended_s,
        config_T=tuple(configs),
        decision_s=tuple(spent),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """What is rented."""

    spot: int
    on_demand: int = 0

    def wanted(self, choice: SpotDecision, use: int, now: int) -> _Fleet:
        """What the choice rents; on demand as many as its grid lacks, if it does not say."""
        spot = now if choice.hold is None else min(choice.hold, now)
        if choice.on_demand is None:
            return _Fleet(spot=spot, on_demand=max(0, use - spot))
        return _Fleet(spot=min(spot, max(0, use - choice.on_demand)), on_demand=choice.on_demand)

    def short_chance(self, was: int, now: int, use: int) -> float:
        """P(more are needed than are there)."""
        lost, gained = max(0, was - now), max(0, now - was)
        there = self.spot + self.on_demand + gained
        return short_chance(max(was, self.spot), self.spot, lost, there - use)


def _cut(job: SpotJob, config: int, instances: int) -> int:
    wide, deep = job.grids[config]
    if wide * deep <= instances:
        return config
    smaller = (instances // deep, deep) if instances >= deep else (1, instances)
    return job.at.get(smaller, SUSPENDED)
