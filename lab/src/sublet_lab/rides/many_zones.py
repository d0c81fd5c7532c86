"""One job on the spot markets of several zones, replayed: where it runs is chosen together with its grid.

This is a replay of its own and no policy of the kernel. A job that moves between zones needs a look ahead over places,
with the losses of each at their recent pace, and no policy has one yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sublet.domain.quantity import at_least
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace
from sublet.perf.grids import SUSPENDED
from sublet.perf.parcae import ON_DEMAND_USD_PER_H, PARCAE_BATCHES, SPOT_USD_PER_H, least_usd_per_sample, measured_job
from sublet.solve.arrays import Floats
from sublet_lab.rides.zones import Have, Links, ZonedJob, zoned_look, zoned_oracle

Chooses = Literal["oracle", "greedy-live", "liveput"]
CHOICES: tuple[Chooses, ...] = get_args(Chooses)
LOOK_STEPS = 20
LATE_TICKS = 120.0  # half-life of what is known about a zone's losses


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonedRunResult:
    """The result of such a run."""

    samples: float
    usd: float  # rent of the grids, and traffic between zones
    changes: int
    moves: int  # to another site
    suspended_s: float
    state_T: tuple[int, ...]

    @property
    def samples_per_usd(self) -> float:
        """0 where nothing was paid."""
        return self.samples / self.usd if self.usd else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRuns:
    """Every way to choose in all zones, and liveput in each alone."""

    model: str
    zones: Sequence[str]
    span_h: float
    runs: Mapping[tuple[str, str], ZonedRunResult]  # (zones, policy)
    least: int  # instances that a pipeline needs
    most: Mapping[str, int]  # instances that a zone ever had


def measured_zoned_job(
    model: str, zones: Sequence[str], have_T: Sequence[Have], *, step_s: float, links: Links
) -> ZonedJob:
    """A model in several zones; no job pays more for a sample than it costs on demand."""
    job = measured_job(model, step_s=step_s)
    return ZonedJob(
        job,
        zones,
        np.array(have_T).max(axis=0).tolist(),
        batch=PARCAE_BATCHES[model],
        links=links,
        usd_per_h=SPOT_USD_PER_H,
        most_usd=least_usd_per_sample(job, ON_DEMAND_USD_PER_H),
    )


def have_of(traces: Sequence[SpotTrace], *, step_s: float, span_s: float | None = None) -> tuple[list[str], list[Have]]:
    """Zones of all traces, and instances in each at every tick, for as long as all of them were recorded."""
    zones = [zone for trace in traces for zone in trace.zones]
    if len(set(zones)) < len(zones):
        raise InvalidValue("traces", zones, "of different zones: each may be there once")
    ends_s = [trace.end_s[zone] for trace in traces for zone in trace.zones]
    ticks = int(min([*ends_s, *([span_s] if span_s is not None else [])]) // step_s)
    if ticks < 1:
        raise InvalidValue("traces", f"{min(ends_s):g} s together", f"at least one tick of {step_s:g} s")
    every = [(trace, zone) for trace in traces for zone in trace.zones]
    return zones, [tuple(trace.value_at(zone, tick * step_s) for trace, zone in every) for tick in range(ticks)]


def run_in_zones(job: ZonedJob, chooses: Chooses, have_T: Sequence[Have], *, usd_per_h: float) -> ZonedRunResult:
    """Only the instances of the grid are held."""
    at_least("usd_per_h", usd_per_h, 0.0)
    told = zoned_oracle(job, have_T) if chooses == "oracle" else ()
    again_S = job.job.moves.shrink_C[job.config_S]
    step_s = job.job.step_s
    risk = _Risk(len(job.zones))
    was: Have = (0,) * len(job.zones)
    state, left_s = SUSPENDED, 0.0
    samples = usd = suspended_s = 0.0
    changes = moves = 0
    states = []
    for tick, now in enumerate(have_T):
        risk.see(was, now)
        if chooses == "oracle":
            to = told[tick]
        elif tick and now == was and not (chooses == "liveput" and left_s):
            to = state
        elif chooses == "liveput":
            live_S = job.live_S(now, risk.ahead(), LOOK_STEPS * step_s / 2.0)
            to = zoned_look(job, was, now, state, left_s, steps=LOOK_STEPS, live_S=live_S)
        else:
            to = job.fastest(now)
        pause_s = float(job.pauses_s(was, now)[state, to])
        if pause_s > 0:
            left_s = pause_s + (float(again_S[to]) if left_s > 0 else 0.0)
        samples += float(job.rate_S[to]) * max(0.0, step_s - left_s)
        runs_s = max(0.0, step_s - left_s)
        usd += int(job.use_S[to]) * usd_per_h * step_s / SECONDS_PER_H + float(job.traffic_usd_per_s_S[to]) * runs_s
        left_s = max(0.0, left_s - step_s)
        changes += pause_s > 0
        moves += bool(SUSPENDED not in {state, to} and job.site_S[state] != job.site_S[to])
        suspended_s += step_s * (to == SUSPENDED)
        states.append(to)
        state, was = to, now
    return ZonedRunResult(
        samples=samples, usd=usd, changes=changes, moves=moves, suspended_s=suspended_s, state_T=tuple(states)
    )


class _Risk:
    """How often each zone loses instances of late, and how many at a time."""

    def __init__(self, zones: int) -> None:
        self._events_Z, self._lost_Z, self._ticks = np.zeros(zones), np.zeros(zones), 0.0
        self._fade = 0.5 ** (1.0 / LATE_TICKS)

    def see(self, was: Have, now: Have) -> None:
        fell_Z: Floats = np.maximum(np.array(was) - np.array(now), 0).astype(np.float64)
        self._events_Z = self._events_Z * self._fade + (fell_Z > 0)
        self._lost_Z = self._lost_Z * self._fade + fell_Z
        self._ticks = self._ticks * self._fade + 1.0

    def ahead(self) -> list[tuple[float, int]]:
        """For each zone the share of the time to look at that comes after a loss, and its usual size."""
        mean_Z = np.maximum(self._events_Z / (self._ticks + LOOK_STEPS) * LOOK_STEPS, 1e-9)
        chance_Z = 1.0 + np.expm1(-mean_Z) / mean_Z  # of losses that come at random
        size_Z = self._lost_Z / np.maximum(self._events_Z, 1e-9)
        return [(round(c, 1), round(n)) for c, n in zip(chance_Z.tolist(), size_Z.tolist(), strict=True)]
