"""From many clusters to the few worth knowing: the frontier of time, dollars and risk, and what each limit costs.

Everything here is numbers: how the hours and dollars of a cluster come about is the business of `advise.py`.

>>> some = Clusters(hours_C=np.array([4.0, 2.0, 2.5]), usd_C=np.array([4.0, 9.0, 9.5]))
>>> frontier(some).tolist(), pick(some, Limits(budget_usd=8.0))
([0, 1], 0)
>>> [(step.limit, round(step.more, 3), step.cluster) for step in steps_up(some, Limits(budget_usd=8.0))]
[('budget_usd', 0.125, 1)]
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Bools, Floats, Ints

# C clusters
Goal = Literal["fastest", "cheapest"]

BETTER = 0.01  # a change of less than one percent is no news
LIMITS = ("budget_usd", "usd_per_h", "deadline_h")
TOLD = {
    "budget_usd": "the budget, in USD,",
    "usd_per_h": "the rent, in USD per hour,",
    "deadline_h": "the time, in hours,",
}
EXIT_CODES = {"budget_usd": 110, "usd_per_h": 112, "deadline_h": 111}
FOUND = {"budget_usd": "usd_C", "usd_per_h": "usd_per_h_C", "deadline_h": "hours_C"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clusters:
    """Expected hours and dollars of one job on each cluster, its rent while it runs, and the hours of an unlucky run.

    Infinite hours say that the job cannot run there. `late_h_C` is exceeded in one of twenty runs; without it nothing
    is at risk. `usd_per_h_C` is dollars by hours unless it is given.
    """

    hours_C: Floats
    usd_C: Floats
    late_h_C: Floats = field(default_factory=lambda: np.empty(0))
    usd_per_h_C: Floats = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if not len(self.late_h_C):
            object.__setattr__(self, "late_h_C", self.hours_C)
        if not len(self.usd_per_h_C):
            with np.errstate(invalid="ignore"):
                object.__setattr__(self, "usd_per_h_C", self.usd_C / self.hours_C)
        sizes = {len(of) for of in (self.hours_C, self.usd_C, self.late_h_C, self.usd_per_h_C)}
        if len(sizes) > 1:
            raise InvalidValue("sizes of the columns", sorted(sizes), "one for all")

    def __len__(self) -> int:
        return len(self.hours_C)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits of a cluster."""

    budget_usd: float = math.inf
    usd_per_h: float = math.inf
    deadline_h: float = math.inf

    def __post_init__(self) -> None:
        for name in LIMITS:
            if not getattr(self, name) > 0:
                raise InvalidValue(name, getattr(self, name), "above 0")

    def stated(self) -> list[str]:
        """Those that are finite."""
        return [name for name in LIMITS if getattr(self, name) < math.inf]

    def keep(self, clusters: Clusters) -> Bools:
        """Which clusters stay within all of them."""
        kept_C = np.isfinite(clusters.hours_C)
        for name in self.stated():
            kept_C &= getattr(clusters, FOUND[name]) <= getattr(self, name) * (1 + 1e-9)
        return kept_C


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """With `more` of one limit (0.02 = two percent) `cluster` would be chosen, which is better by `gain`."""

    limit: str
    more: float
    cluster: int
    gain: float


def pick(clusters: Clusters, limits: Limits, goal: Goal = "fastest", *, alike: float = 0.0) -> int:
    """The fastest or the cheapest cluster within the limits; `Infeasible` names the one in the way.

    Of several that are as fast, the cheapest; and of several that are as cheap, the fastest. With `alike`, clusters
    that are worse by less than this share count as equal: a tenth more is not paid to save a minute of a day.
    """
    kept = np.flatnonzero(limits.keep(clusters))
    if not len(kept):
        raise _nothing(clusters, limits)
    first, second = (clusters.hours_C, clusters.usd_C) if goal == "fastest" else (clusters.usd_C, clusters.hours_C)
    kept = kept[first[kept] <= first[kept].min() * (1.0 + alike)]
    for value_C in (second, first, clusters.late_h_C):
        kept = kept[value_C[kept] == value_C[kept].min()]
    return int(kept[0])


def binding(clusters: Clusters, limits: Limits, goal: Goal = "fastest") -> list[str]:
    """The limits without which, each by itself, the choice would be better; most harmful first."""
    value_C = clusters.hours_C if goal == "fastest" else clusters.usd_C
    here = value_C[pick(clusters, limits, goal)]
    gains = {}
    for name in limits.stated():
        there = value_C[pick(clusters, replace(limits, **{name: math.inf}), goal)]
        if there < here * (1 - BETTER):
            gains[name] = 1 - there / here
    return sorted(gains, key=lambda name: -gains[name])


def steps_up(clusters: Clusters, limits: Limits, goal: Goal = "fastest") -> list[Step]:
    """For each limit that binds, how little more of it would change the answer, and to what."""
    value_C = clusters.hours_C if goal == "fastest" else clusters.usd_C
    here = value_C[pick(clusters, limits, goal)]
    found = []
    for name in binding(clusters, limits, goal):
        loose = replace(limits, **{name: math.inf})
        better = np.flatnonzero(loose.keep(clusters) & (value_C < here * (1 - BETTER)))
        needed = getattr(clusters, FOUND[name])[better]
        nearest = better[needed <= needed.min() * (1 + BETTER)]
        cluster = int(nearest[value_C[nearest].argmin()])
        more = float(getattr(clusters, FOUND[name])[cluster] / getattr(limits, name) - 1)
        found.append(Step(limit=name, more=more, cluster=cluster, gain=float(1 - value_C[cluster] / here)))
    return found


def frontier(clusters: Clusters, limits: Limits = Limits(), *, resolution: float = 0.0) -> Ints:
    """Clusters that no other beats in time, dollars and risk at once, cheapest first.

    With a resolution of 0.02, differences of less than about two percent count as none, and of clusters that are alike
    only the cheapest stays. Cost: O(C log C), and O(F log F) for the F that survive a comparison with a sample.

    >>> three = Clusters(hours_C=np.array([1.0, 2.0, 2.0]), usd_C=np.array([3.0, 1.0, 1.0]))
    >>> frontier(three).tolist()
    [1, 0]
    """
    kept = np.flatnonzero(limits.keep(clusters))
    if not len(kept):
        return kept
    hours, usd, late = (column[kept] for column in (clusters.hours_C, clusters.usd_C, clusters.late_h_C))
    risk = np.round(late / hours, 9)
    boxes = [_round_logs(column, resolution) for column in (usd, hours, risk)]
    rows = np.flatnonzero(_survivors(*boxes))
    usd_B, hours_B, risk_B = (box[rows] for box in boxes)
    order = np.lexsort((hours[rows], usd[rows], risk_B, hours_B, usd_B))
    front = _staircase(hours_B[order].tolist(), risk_B[order].tolist())
    found = kept[rows[order[front]]]
    return np.asarray(found[np.lexsort((clusters.hours_C[found], clusters.usd_C[found]))])


def _round_logs(values: Floats, resolution: float) -> Floats:
    """Logarithms, rounded down to steps of the resolution."""
    if resolution <= 0:
        return values
    return np.asarray(np.floor(np.log(np.maximum(values, 1e-12)) / math.log1p(resolution)))


def _survivors(usd: Floats, hours: Floats, risk: Floats) -> Bools:
    """Those that none of a few good ones beats: nearly all fall here, before the slow part."""
    alive = np.ones(len(usd), dtype=np.bool_)
    share = np.linspace(0.0, 1.0, 5)
    scaled = [(column - column.min()) / max(float(np.ptp(column)), 1e-12) for column in (usd, hours, risk)]
    samples = {
        int((a * scaled[0] + (1 - a) * (b * scaled[1] + (1 - b) * scaled[2])).argmin()) for a in share for b in share
    }
    for row in samples:
        if alive[row]:
            worse = (usd >= usd[row]) & (hours >= hours[row]) & (risk >= risk[row])
            worse &= (usd > usd[row]) | (hours > hours[row]) | (risk > risk[row])
            alive &= ~worse
    return alive


def _staircase(hours: Sequence[float], risk: Sequence[float]) -> list[int]:
    """Rows in order of dollars that no earlier one beats in both; the stairs are kept with falling risk."""
    front: list[int] = []
    step_hours: list[float] = []
    step_risk: list[float] = []
    for row, (time, late) in enumerate(zip(hours, risk, strict=True)):
        at = bisect_left(step_hours, time)
        covered = at > 0 and step_risk[at - 1] <= late
        if covered or (at < len(step_hours) and step_hours[at] == time and step_risk[at] <= late):
            continue
        front.append(row)
        end = at
        while end < len(step_hours) and step_risk[end] >= late:
            end += 1
        step_hours[at:end], step_risk[at:end] = [time], [late]
    return front


def _nothing(clusters: Clusters, limits: Limits) -> Infeasible:
    """Which limit is in the way, and what it would have to be."""
    runs = np.isfinite(clusters.hours_C)
    if not runs.any():
        return Infeasible(
            "the job runs on none of these offers",
            binding="number of clusters on which it runs",
            needed=1,
            available=0,
            hint="allow more kinds or clouds, more nodes, or a smaller batch on each GPU",
        )
    for name in limits.stated():
        rest = replace(limits, **{name: math.inf}).keep(clusters)
        if rest.any():
            needed = float(getattr(clusters, FOUND[name])[rest].min())
            return Infeasible(
                "no cluster does it",
                binding=TOLD[name],
                needed=needed,
                available=getattr(limits, name),
                hint=f"{needed:.4g} is the least that suffices, with all else as it is",
                exit_code=EXIT_CODES[name],
            )
    name = limits.stated()[0]
    return Infeasible(
        "no cluster keeps these limits together",
        binding=TOLD[name],
        needed=float(getattr(clusters, FOUND[name])[runs].min()),
        available=getattr(limits, name),
        hint="relax two of them",
    )
