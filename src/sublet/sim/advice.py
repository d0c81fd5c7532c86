"""What may become of an advised cluster: its job replayed over windows of real spot traces.

The kernel is left out, because one job on fixed nodes leaves nothing to decide: a light replay of losses, lost work,
waits and restarts takes milliseconds. A window is a zone of a trace and a moment in it; when the record ends it starts
again. The moments are spread over the time in which the zone had as many nodes as the cluster needs: nobody starts
where there are none. From then on

- a fall of the trace from n to m takes every spot node of the cluster with chance 1 - m / n, as the hazard assumes;
- the job goes back to its last checkpoint, and begins again once the zone has enough nodes, they are provisioned, and
  the job has restarted;
- nodes that are gone are not paid for, all others are, at the prices of today.

A cluster that needs more nodes than a zone had half of the time waits for that many only: the market is taken to be
larger in proportion. The speed varies from window to window by its stated spread, and on demand nothing else does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.market.hazard import trace_hazard
from sublet.market.spot import SpotTrace
from sublet.market.traces import load_trace
from sublet.planning.advise import Ask, Choice
from sublet.planning.advise_frontier import Limits
from sublet.planning.advise_hazard import reclaims_of
from sublet.planning.advise_keep import BACKGROUND_S, nodes_on_demand

__all__ = ["WINDOWS", "Outlook", "Quantiles", "outlook", "replayed"]

# W windows, F falls of a zone
Floats = npt.NDArray[np.float64]

WINDOWS = 40
MOST_RECLAIMS = 200  # replayed in one window; what is left then goes on at the pace so far, known to a few per cent
SECONDS_PER_H = 3600.0


class Quantiles(NamedTuple):
    """Of ten runs one is below the first, five below the second, nine below the third; infinite: it does not end."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlook:
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
        """Of the windows, those that keep deadline and budget. The rent per hour does not vary."""
        kept_W = (self.hours_W <= limits.deadline_h) & (self.usd_W <= limits.budget_usd)
        return float((kept_W & np.isfinite(self.hours_W)).mean())


def outlook(choice: Choice, ask: Ask, *, rng: np.random.Generator, windows: int = WINDOWS) -> Outlook:
    """On the traces by which the adviser knows how often such nodes are reclaimed."""
    spot = choice.spot or choice.offer
    names = reclaims_of(spot.cloud, spot.gpu).traces if choice.reclaims > 0 else ()
    return replayed(choice, ask, [_trace(name) for name in names], rng=rng, windows=windows)


def replayed(
    choice: Choice, ask: Ask, traces: Sequence[SpotTrace], *, rng: np.random.Generator, windows: int = WINDOWS
) -> Outlook:
    """On these traces, with equally many windows of each. Cost: O(windows x (reclaims + falls of the trace))."""
    whole("windows", windows, 1)
    # One speed from each of as many equally likely parts of its distribution: few windows then suffice.
    normal, shares = NormalDist(), (np.arange(windows) + 0.5) / windows
    speed_W = np.exp(choice.spread * rng.permutation([normal.inv_cdf(share) for share in shares]))
    train_s_W = ask.samples / choice.rate / speed_W
    spot_nodes = choice.nodes - int(nodes_on_demand([choice.keeper], np.array([float(choice.nodes)]))[0, 0])
    if choice.reclaims > 0:
        if not traces:
            raise InvalidValue("traces", 0, "at least one for a cluster with spot nodes")
        job = _SpotJob.of(choice, ask, spot_nodes)
        times = [ask.reclaims * _stated(choice, trace) for trace in traces]
        starts = _starts(traces, times, spot_nodes, windows, rng)
        ends = [_ride(job, train_s, *at, rng) for train_s, at in zip(train_s_W.tolist(), starts, strict=True)]
        ended_s_W, away_s_W, reclaims_W = (np.array(column, dtype=np.float64) for column in zip(*ends, strict=True))
    else:
        ended_s_W = ask.provision_s + ask.profile.restart_s + train_s_W
        away_s_W = reclaims_W = np.zeros(windows)
    hours_W = ended_s_W / SECONDS_PER_H
    spot_usd_per_h = (choice.spot or choice.offer).price.usd_per_h
    least_h = choice.offer.minimum_billing_s / SECONDS_PER_H
    usd_W = choice.usd_per_h * np.maximum(hours_W, least_h) - spot_usd_per_h * away_s_W / SECONDS_PER_H
    return Outlook(
        hours_W=hours_W, usd_W=usd_W, reclaims_W=reclaims_W, traces=tuple(dict.fromkeys(each.name for each in traces))
    )


def _stated(choice: Choice, trace: SpotTrace) -> float:
    """How many times the reclaims of the trace the offer says there are; 1 where it says nothing."""
    stated = (choice.spot or choice.offer).hazard_per_h
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


@cache
def _trace(name: str) -> SpotTrace:
    return load_trace(name)


# ---------------------------------------------------------------------- where and when a window begins


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Zone:
    """A zone as a cluster that needs `need` nodes sees it."""

    t_s: list[float]
    enough: list[bool]  # from t_s on
    open_s: list[float]  # when it begins to have enough
    fall_s_F: Floats
    share_F: Floats  # of the nodes, lost in each fall
    end_s: float

    @classmethod
    def of(cls, trace: SpotTrace, name: str, nodes: int, times: float) -> _Zone:
        """With so many times the losses of the trace."""
        steps, end_s = trace.series[name], trace.end_s[name]
        held_s = np.diff(np.append(steps.t_s, end_s))
        order = np.argsort(steps.value, kind="stable")
        half = int(np.searchsorted(np.cumsum(held_s[order]), held_s.sum() / 2.0))
        usual = int(steps.value[order[min(half, len(order) - 1)]])
        enough = steps.value >= min(nodes, max(usual, 1))
        opens = enough & ~np.concatenate(([False], enough[:-1]))
        falls = np.flatnonzero(np.diff(steps.value) < 0) + 1
        return cls(
            t_s=steps.t_s.tolist(),
            enough=enough.tolist(),
            open_s=steps.t_s[opens].tolist(),
            fall_s_F=steps.t_s[falls],
            share_F=np.minimum(times * (1.0 - steps.value[falls] / steps.value[falls - 1]), 1.0),
            end_s=end_s,
        )

    def wait_s(self, at_s: float) -> float:
        """From an instant of the trace, which starts again when it has ended, until there are enough."""
        local_s = at_s % self.end_s
        row = bisect_right(self.t_s, local_s) - 1
        if row >= 0 and self.enough[row]:
            return 0.0
        later = bisect_right(self.open_s, local_s)
        return (self.open_s[later] if later < len(self.open_s) else self.end_s + self.open_s[0]) - local_s

    def losses(self, start_s: float, nodes: int, rng: np.random.Generator) -> Iterator[tuple[float, int]]:
        """Seconds after the start, and how many of `nodes` are lost then; at the end of every round none are."""
        zero_s = -start_s
        while True:
            lost_F = rng.binomial(nodes, self.share_F)
            for fall in np.flatnonzero(lost_F).tolist():
                if (at_s := zero_s + float(self.fall_s_F[fall])) > 0.0:
                    yield at_s, int(lost_F[fall])
            zero_s += self.end_s
            yield zero_s, 0


def _starts(
    traces: Sequence[SpotTrace], times: Sequence[float], nodes: int, windows: int, rng: np.random.Generator
) -> list[tuple[_Zone, float]]:
    """Zones and moments, spread evenly over the time with enough nodes of each trace."""
    found = []
    for at, trace in enumerate(traces):
        zones = [zone for name in trace.zones if (zone := _Zone.of(trace, name, nodes, times[at])).open_s]
        spans = [
            (zone, t_s, end_s)
            for zone in zones
            for t_s, end_s, enough in zip(zone.t_s, [*zone.t_s[1:], zone.end_s], zone.enough, strict=True)
            if enough and end_s > t_s
        ]
        if not spans:
            raise InvalidValue("trace", trace.name, "one in which nodes can be held at some time")
        upto_s = np.cumsum([end_s - t_s for _, t_s, end_s in spans])
        count = len(range(at, windows, len(traces)))
        for place_s in (np.arange(count) + rng.random(count)) / max(count, 1) * upto_s[-1]:
            span = min(int(np.searchsorted(upto_s, place_s, side="right")), len(spans) - 1)
            zone, _, end_s = spans[span]
            found.append((zone, end_s - float(upto_s[span] - place_s)))
    return found


# ---------------------------------------------------------------------- one window


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpotJob:
    nodes: int
    spot_nodes: int
    first_s: float  # until it trains
    again_s: float  # the same after a loss, with the checkpoint read
    every_s: float
    write_s: float
    peers: bool  # checkpoints are in the memory of nodes that may be lost together

    @classmethod
    def of(cls, choice: Choice, ask: Ask, spot_nodes: int) -> _SpotJob:
        first_s = ask.provision_s + ask.profile.restart_s
        return cls(
            nodes=choice.nodes,
            spot_nodes=spot_nodes,
            first_s=first_s,
            again_s=first_s + choice.checkpoint_write_s,
            every_s=choice.checkpoint_every_s,
            write_s=choice.checkpoint_write_s,
            peers=choice.keeper == "peers",
        )


def _ride(
    job: _SpotJob, train_s: float, zone: _Zone, start_s: float, rng: np.random.Generator
) -> tuple[float, float, int]:
    """When it ends, the node-seconds for which spot nodes were gone, and how often some were taken."""
    left_s, ready_s, back_s, away_s = train_s, job.first_s, 0.0, 0.0
    held, reclaims = job.spot_nodes, 0
    for at_s, taken in zone.losses(start_s, job.spot_nodes, rng):
        end_s = ready_s + left_s + (math.ceil(left_s / job.every_s) - 1) * job.write_s
        if end_s <= at_s:
            return end_s, away_s, reclaims
        if not taken:
            continue
        if reclaims == MOST_RECLAIMS:
            break
        reclaims += 1
        left_s -= max(at_s - ready_s, 0.0) // (job.every_s + job.write_s) * job.every_s
        if job.peers and rng.random() * (job.nodes - 1) < taken * (taken - 1):  # one of them kept the other's copy
            left_s += (train_s - left_s) % BACKGROUND_S
        if at_s >= back_s:  # those lost before have been replaced
            held = job.spot_nodes
        lost = min(taken, held)
        held -= lost
        back_s = at_s + zone.wait_s(start_s + at_s)
        away_s += lost * (back_s - at_s)
        ready_s = back_s + job.again_s
    pace = (train_s - left_s) / ready_s
    if pace <= 0.0:
        return math.inf, 0.0, reclaims
    grown = train_s / (train_s - left_s)
    return ready_s + left_s / pace, away_s * grown, round(reclaims * grown)
