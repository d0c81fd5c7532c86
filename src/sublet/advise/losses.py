"""Losses of a cluster of spot nodes, by traces: how many at once, and when they can be had again.

A fall of a zone from n to m nodes takes each node of the cluster with chance 1 - m / n. After a loss the cluster waits
until the zone has as many nodes as it needs, or as many as it had half of the time, whichever is less.

In several zones of one region there are two ways. Nodes spread over all of them fall zone by zone, and are replaced
from whichever has some. Or all are together in one of them, and move when another has enough. How much shorter the
waits are is measured where a trace has several zones of one region; without such a trace they are taken to be as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sublet.advise.hazard import known_trace
from sublet.errors import MissingData
from sublet.market.spot import SpotTrace
from sublet.solve.arrays import Bools, Floats, Ints

# S numbers of spot nodes from 0 up, F falls of a trace, T changes of it

SEVERAL_ZONES = ("skypilot-v100-2023-08", "skynomad-h100")  # with several zones in one region: AWS, Google
SIZES = (1, 4, 16)  # nodes for which the gain of more zones is measured
EACH_SIZE = 16  # up to here every size is measured, then four between a power of two and the next


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Losses:
    """For each number of spot nodes, 0 first."""

    at_once_S: Floats  # nodes lost in a fall that takes any
    all_S: Floats  # the chance that such a fall takes all of them
    wait_s_S: Floats  # mean time from a loss until nodes can be had again
    wait_square_S: Floats  # mean of its square


@cache
def losses(traces: tuple[str, ...], zones: int, most: int, *, together: bool = False, share: float = 0.0) -> Losses:
    """The mean of some traces. If there are none, nodes can be had again at once.

    Then each reclaim takes every node with chance `share`, as `perf.preemption` has it; at 0 they go one by one.
    """
    nodes_S = np.arange(most + 1.0)
    if traces:
        met = [_met(name, most) for name in traces]
        at_once_S, all_S, wait_s_S, wait_square_S = (np.mean(columns, axis=0) for columns in zip(*met, strict=True))
    else:
        at_once_S, all_S = _stated(nodes_S, share)
        wait_s_S = wait_square_S = np.zeros(most + 1)
    if not together and zones > 1:  # a fall meets the nodes of its zone only
        at_once_S, all_S = np.interp(nodes_S / zones, nodes_S, at_once_S), np.where(nodes_S == 1, 1.0, 0.0)
    gain = _gain(zones, together=together) if traces else 1.0
    return Losses(at_once_S=at_once_S, all_S=all_S, wait_s_S=gain * wait_s_S, wait_square_S=gain**2 * wait_square_S)


def neighbours(trace: SpotTrace, zones: int) -> list[list[str]]:
    """Groups of so many zones of one region; single zones where no region has as many.

    A region is what comes before the letter of a zone: us-east-1 of us-east-1c, us-central1 of us-central1-a.
    """
    return list(_groups(trace.zones, zones)) or [[name] for name in trace.zones]


@cache
def zones_in(traces: tuple[str, ...], region: str) -> int:
    """How many zones of a region stand in these traces."""
    return sum(_region(zone) == region for name in traces for zone in known_trace(name).zones)


def _region(zone: str) -> str:
    return zone[:-1].rstrip("-")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capacity:
    """Some zones as one: what they have together (or the fullest of them), and the falls of each."""

    t_s_T: Floats
    nodes_T: Ints
    fall_s_F: Floats
    share_F: Floats  # of the nodes of the zone, lost in each fall
    zone_F: Ints
    zones: int  # over which nodes are spread
    end_s: float

    @classmethod
    def of(cls, trace: SpotTrace, names: Sequence[str], *, together: bool = False) -> Capacity:
        """Nodes that are together meet the falls of the first zone: which it is makes no difference on average."""
        end_s = min(trace.end_s[name] for name in names)
        t_s_T = np.unique(np.concatenate([trace.series[name].t_s for name in names]))
        t_s_T = t_s_T[t_s_T < end_s] if (t_s_T < end_s).any() else t_s_T[:1]
        each = np.array([trace.series[name].many(t_s_T, before=0) for name in names])
        fall_s, share, zone = [], [], []
        for at, name in enumerate(names[:1] if together else names):
            steps = trace.series[name]
            falls = np.flatnonzero(np.diff(steps.value) < 0) + 1
            falls = falls[steps.t_s[falls] < end_s]
            fall_s.append(steps.t_s[falls])
            share.append(1.0 - steps.value[falls] / steps.value[falls - 1])
            zone.append(np.full(len(falls), at))
        fall_s_F = np.concatenate(fall_s)
        order = np.argsort(fall_s_F, kind="stable")
        return cls(
            t_s_T=t_s_T,
            nodes_T=each.max(axis=0) if together else each.sum(axis=0),
            fall_s_F=fall_s_F[order],
            share_F=np.concatenate(share)[order],
            zone_F=np.concatenate(zone)[order],
            zones=1 if together else len(names),
            end_s=end_s,
        )

    def enough_for(self, nodes: int) -> Bools:
        """When so many can be had; for more than there were half of the time, when that many can."""
        held_s = np.diff(np.append(self.t_s_T, self.end_s))
        order = np.argsort(self.nodes_T, kind="stable")
        half = int(np.searchsorted(np.cumsum(held_s[order]), held_s.sum() / 2.0))
        usual = int(self.nodes_T[order[min(half, len(order) - 1)]])
        return np.asarray(self.nodes_T >= min(nodes, max(usual, 1)))

    def waits_s(self, nodes: int) -> Floats:
        """From each fall until there are enough; a trace that has ended starts again."""
        enough_T = self.enough_for(nodes)
        if not enough_T.any():
            return np.zeros(len(self.fall_s_F))
        at_F = np.searchsorted(self.t_s_T, self.fall_s_F, side="right") - 1
        opens_s = self.t_s_T[enough_T & ~np.concatenate(([False], enough_T[:-1]))]
        later_F = np.searchsorted(opens_s, self.fall_s_F, side="right")
        next_s_F = np.append(opens_s, self.end_s + opens_s[0])[later_F]
        return np.where(enough_T[at_F], 0.0, next_s_F - self.fall_s_F)


def _stated(nodes_S: Floats, share: float) -> tuple[Floats, Floats]:
    """At once and all, where a reclaim takes each node with this chance: binomial, given that it takes one."""
    alone_S = (nodes_S == 1).astype(np.float64)
    if share == 0.0:
        return np.ones(len(nodes_S)), alone_S
    struck_S = np.maximum(1.0 - (1.0 - share) ** nodes_S, share)  # of no nodes none are lost, whatever this is
    return np.maximum(nodes_S * share / struck_S, 1.0), np.where(nodes_S > 0, share**nodes_S / struck_S, 0.0)


@cache
def _met(name: str, most: int) -> tuple[Floats, ...]:
    """At once, all, wait and its square, over all zones of a trace, each by itself."""
    trace = known_trace(name)
    wider = [round(2.0 ** (step / 4)) for step in range(17, 80) if 2.0 ** (step / 4) < most]
    sizes = np.array([size for size in (*range(EACH_SIZE + 1), *wider, most) if size <= most])
    found = _pooled([Capacity.of(trace, [zone]) for zone in trace.zones], sizes)
    return tuple(np.interp(np.arange(most + 1.0), sizes, column) for column in found)


@cache
def _gain(zones: int, *, together: bool) -> float:
    """Mean wait with so many zones by that with one of them, over the regions of traces that have as many."""
    found = []
    for name in SEVERAL_ZONES if zones > 1 else ():
        try:
            trace = known_trace(name)
        except MissingData:
            continue
        for group in _groups(trace.zones, zones):
            _, _, several, _ = _pooled([Capacity.of(trace, group, together=together)], np.array(SIZES))
            _, _, single, _ = _pooled([Capacity.of(trace, [zone]) for zone in group], np.array(SIZES))
            if single.sum() > 0:
                found.append(several.sum() / single.sum())
    return min(float(np.mean(found)), 1.0) if found else 1.0


def _groups(names: Sequence[str], zones: int) -> Iterator[list[str]]:
    regions: dict[str, list[str]] = defaultdict(list)
    for name in names:
        regions[_region(name)].append(name)
    for own in regions.values():
        for first in range(len(own) - zones + 1):
            yield own[first : first + zones]


def _pooled(places: Sequence[Capacity], nodes_S: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Falls of all places, each as often as it hits a cluster of that many nodes."""
    at_once = np.ones(len(nodes_S))
    gone, wait_s, wait_square = (np.zeros(len(nodes_S)) for _ in range(3))
    share_F = np.concatenate([place.share_F for place in places])
    spread_F = np.concatenate([np.full(len(place.share_F), place.zones) for place in places])
    for at, nodes in enumerate(nodes_S.tolist()):
        hit_F = 1.0 - (1.0 - share_F) ** (nodes / spread_F)
        if not nodes or not hit_F.any():
            continue
        wait_F = np.concatenate([place.waits_s(nodes) for place in places])
        at_once[at] = max(float((share_F / spread_F).sum()) * nodes / float(hit_F.sum()), 1.0)
        gone[at] = float((share_F**nodes).sum()) / float(hit_F.sum())
        wait_s[at], wait_square[at] = np.average(wait_F, weights=hit_F), np.average(wait_F**2, weights=hit_F)
    return at_once, gone, wait_s, wait_square
