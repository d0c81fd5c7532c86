"""One job rides a spot trace, tick by tick: samples, dollars, changes, and how long decisions took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.quantity import at_least
from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace
from sublet.planning.liveput import Seen, SpotPolicy
from sublet.planning.liveput_job import SUSPENDED, SpotJob

__all__ = ["Ride", "capacity_of", "ride"]

SPOT_USD_PER_H = 0.918  # p3.2xlarge in the public price traces, flat
BOOT_S = 45.0  # what Bamboo measured for creating an instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Ride:
    """What came of it."""

    samples: float
    usd: float
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


def ride(
    job: SpotJob,
    policy: SpotPolicy,
    capacity: Sequence[int],
    *,
    before: Sequence[int] = (),
    usd_per_h: float = SPOT_USD_PER_H,
    boot_s: float = BOOT_S,
    clock: Callable[[], float] = time.process_time,
) -> Ride:
    """Run a policy. `before` is what was recorded earlier: pilots may learn from it, and the job starts after it.

    A choice that does not fit the instances there are loses pipelines; if not one is left it becomes one pipeline of
    all of them, or none where that is no configuration. Instances that were not held, and are needed, take `boot_s`;
    of those held as many are taken to be lost as of all, the same worst case as in the migration costs.
    """
    at_least("usd_per_h", usd_per_h, 0.0)
    if not capacity or min(capacity) < 0:
        raise InvalidValue("capacity", capacity, "instances at one tick or more, none below 0")
    known = np.array([*before, *capacity], dtype=np.float64)
    pilot = policy.start(job, before)
    held, left_s, paid = SUSPENDED, 0.0, int(known[len(before) - 1]) if len(before) else 0
    samples = usd = suspended_s = 0.0
    changes, configs, spent = 0, [], []
    for tick, now in enumerate(capacity, start=len(before)):
        was = int(known[tick - 1]) if tick else 0
        seen = Seen(
            history=known[: tick + (not policy.blind or not tick)], held=held, left_s=left_s, first=tick == len(before)
        )
        started_s = clock()
        choice = pilot.decide(seen)
        spent.append(clock() - started_s)
        config = _cut(job, choice.config, now)
        if choice.pause_s is None:
            there = max(0, paid - max(0, was - now)) + max(0, now - was)
            late_s = boot_s if job.use_C[config] > there else 0.0
            gained, left_s, changed = job.advance(held, left_s, config, was, now, boot_s=late_s)
        else:
            left_s, changed = choice.pause_s or left_s, choice.pause_s > 0
            gained = float(job.rate_C[config]) * max(0.0, job.step_s - left_s)
            left_s = max(0.0, left_s - job.step_s)
        samples += gained * choice.speed
        paid = now if choice.hold is None else min(choice.hold, now)
        usd += paid * usd_per_h * job.step_s / 3600.0
        suspended_s += job.step_s * (config == SUSPENDED)
        changes += changed
        configs.append(config)
        held = config
    return Ride(
        samples=samples,
        usd=usd,
        changes=changes,
        suspended_s=suspended_s,
        config_T=tuple(configs),
        decision_s=tuple(spent),
    )


def _cut(job: SpotJob, config: int, instances: int) -> int:
    wide, deep = job.grids[config]
    if wide * deep <= instances:
        return config
    smaller = (instances // deep, deep) if instances >= deep else (1, instances)
    return job.at.get(smaller, SUSPENDED)
