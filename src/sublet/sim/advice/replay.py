"""The spread of results of an advised cluster: its job replayed over windows of real spot traces.

The kernel is left out, because one job on fixed nodes leaves nothing to decide: a light replay of losses, lost work,
waits and restarts takes milliseconds. A window is a zone of a trace and a moment in it; when the record ends it starts
again. The moments are spread over the time in which the zone had as many nodes as the cluster needs: no job starts
without nodes. From then on

- a fall of the trace from n to m takes every spot node of the cluster with chance 1 - m / n, as the hazard assumes;
- the job goes back to its last checkpoint, and begins again once the zone has enough nodes, they are provisioned, and
  the job has restarted. Or it restarts at once on the nodes that are left, and again when the others are there;
- nodes that are gone are not paid for, all others are, at the prices of today.

A cluster that needs more nodes than a zone had half of the time waits for that many only: the market is taken to be
larger in proportion. A cluster in several zones is replayed on as many of one region, where a trace has them. The speed
varies from window to window by its stated spread, and on demand nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sublet.advise.adviser import Ask, ClusterChoice
from sublet.advise.frontier import Limits
from sublet.advise.hazard import known_trace, reclaims_of
from sublet.domain.quantity import whole
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.market.hazard import trace_hazard
from sublet.market.spot import SpotTrace
from sublet.sim.advice.window import ReplayedJob, replay_going_on, replay_waiting, starts
from sublet.solve.arrays import Floats

# W windows, F falls of a zone

WINDOWS = 40


class Quantiles(NamedTuple):
    """Quantiles: of ten runs one is below the first, five below the second, nine below the third; or infinite."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayedWindows:
    """Time, dollars and reclaims in each window, and the traces that they come from (none on demand)."""

    hours_W: Floats
    usd_W: Floats
    reclaims_W: Floats
    traces: tuple[str, ...]

    @property
    def windows(self) -> int:
        """How many runs."""
        return len(self.hours_W)

    @property
    def hours(self) -> Quantiles:
        """Until the job is done, from when its nodes were asked for."""
        return _quantiles(self.hours_W)

    @property
    def usd(self) -> Quantiles:
        """The whole bill."""
        return _quantiles(self.usd_W)

    @property
    def reclaims(self) -> Quantiles:
        """Moments at which at least one node was taken."""
        return _quantiles(self.reclaims_W)

    def share_within(self, limits: Limits) -> float:
        """The share of the windows that keep deadline and budget. The rent per hour does not vary."""
        kept_W = (self.hours_W <= limits.deadline_h) & (self.usd_W <= limits.budget_usd)
        return float((kept_W & np.isfinite(self.hours_W)).mean())


def replay_choice(
    choice: ClusterChoice, ask: Ask, *, rng: np.random.Generator, windows: int = WINDOWS
) -> ReplayedWindows:
    """On the traces by which the adviser knows how often such nodes are reclaimed."""
    names = reclaims_of(choice.offer.cloud, choice.offer.gpu).traces if choice.reclaims > 0 else ()
    return replayed(choice, ask, [known_trace(name) for name in names], rng=rng, windows=windows)


def replayed(
    choice: ClusterChoice, ask: Ask, traces: Sequence[SpotTrace], *, rng: np.random.Generator, windows: int = WINDOWS
) -> ReplayedWindows:
    """On these traces, with equally many windows of each. Cost: O(windows x (reclaims + falls of the trace))."""
    whole("windows", windows, 1)
    # One speed from each of as many equally likely parts of its distribution: few windows then suffice.
    normal, shares = NormalDist(), (np.arange(windows) + 0.5) / windows
    speed_W = np.exp(choice.spread * rng.permutation([normal.inv_cdf(share) for share in shares]))
    train_s_W = ask.samples / choice.rate / speed_W
    if choice.reclaims > 0:
        if not traces:
            raise InvalidValue("traces", 0, "at least one for a cluster with spot nodes")
        job = ReplayedJob.of(choice, ask)
        times = [ask.reclaims * _times_of_trace(choice, trace) for trace in traces]
        begun = starts(traces, times, choice, windows, rng)
        go = replay_going_on if choice.goes_on else replay_waiting
        ends = [go(job, train_s, *at, rng) for train_s, at in zip(train_s_W.tolist(), begun, strict=True)]
        ended_s_W, away_s_W, reclaims_W = (np.array(column, dtype=np.float64) for column in zip(*ends, strict=True))
    else:
        ended_s_W = ask.provision_s + ask.profile.restart_s + train_s_W
        away_s_W = reclaims_W = np.zeros(windows)
    hours_W = ended_s_W / SECONDS_PER_H
    spot_usd_per_h = sum(spot.price.usd_per_h for spot in choice.spots) / max(len(choice.spots), 1)
    least_h = choice.offer.minimum_billing_s / SECONDS_PER_H
    rent_usd_W = choice.usd_per_h * np.maximum(hours_W, least_h) - spot_usd_per_h * away_s_W / SECONDS_PER_H
    usd_W = rent_usd_W + choice.traffic_usd
    return ReplayedWindows(
        hours_W=hours_W, usd_W=usd_W, reclaims_W=reclaims_W, traces=tuple(dict.fromkeys(each.name for each in traces))
    )


def _times_of_trace(choice: ClusterChoice, trace: SpotTrace) -> float:
    """How many times the reclaims of the trace the offer says there are; 1 where it says nothing."""
    stated = choice.spots[0].hazard_per_h
    measured = trace_hazard(trace).pooled.per_h if stated else None
    return stated / measured if stated and measured else 1.0


def _quantiles(value_W: Floats) -> Quantiles:
    ends = np.isfinite(value_W)
    if not ends.any():
        return Quantiles(math.inf, math.inf, math.inf)
    most = float(value_W[ends].max())
    # The k-th of n stands for the middle of the k-th n-th, as the speeds were drawn.
    told = np.quantile(np.where(ends, value_W, 2.0 * most + 1.0), (0.1, 0.5, 0.9), method="hazen")
    return Quantiles(*(float(each) if each <= most else math.inf for each in told))
