"""Arrivals where nothing is forecast: the jobs that have come so far, class by class, as fast as they are known now.

Where those are too many for the average, each is as narrow as it can be. A job that runs learns how fast it is, and is
then of another kind than when it was counted. Its class stays: there the jobs that are gone are taken to have been as
those that are here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache

from sublet.domain.demand import Arrivals, Demand, kind_of
from sublet.domain.job import Job
from sublet.domain.plan import JobState, Snapshot
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.terms import Sites
from sublet.planning.value_of_time import SILENT_H
from sublet.policies.boa.widths import boa_widths, least_widths

__all__ = ["counted_demand", "widths_at_average"]


def widths_at_average(
    snapshot: Snapshot, present: Sequence[JobState], site: Sites, rent: float, seed: int
) -> Mapping[Hashable, Sequence[int]]:
    """GPUs by epoch for every kind of job that is forecast or, without a forecast, has come; none without an aim."""
    aim, told = snapshot.budget.average, snapshot.expected
    if aim is None or rent <= 0:
        return {}
    if told is not None and told.hours > 0:
        return boa_widths(told, site, rent, aim.usd_per_h, seed) or {}
    came = counted_demand(snapshot, present)
    return boa_widths(came, site, rent, aim.usd_per_h, seed) or least_widths(came, site)


def counted_demand(snapshot: Snapshot, present: Iterable[JobState]) -> Demand:
    """So many jobs of each kind since the beginning; the same object for as long as little has changed."""
    hours = SILENT_H + (snapshot.now_s - snapshot.began_s) / SECONDS_PER_H
    here = Counter(_Kind(state.job) for state in present if math.isfinite(state.job.work))
    return _counted(snapshot.arrived, float(f"{hours:.1e}"), tuple(here.items()))


class _Kind:
    """The kind of a job, to look it up by, with one of them."""

    __slots__ = ("job", "key")

    def __init__(self, job: Job) -> None:
        self.job, self.key = job, kind_of(job)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self.key == other.key


@lru_cache(maxsize=16)
def _counted(arrived: Demand, hours: float, here: tuple[tuple[_Kind, int], ...]) -> Demand:
    came, present = defaultdict[Hashable, float](float), Counter[Hashable]()
    for arrivals in arrived.kinds.values():
        came[_class_of(arrivals.like)] += arrivals.jobs
    for kind, count in here:
        present[_class_of(kind.job)] += count
    learned = {_class_of(kind.job) for kind, _ in here if kind.key not in arrived.kinds}
    kinds = {key: each for key, each in arrived.kinds.items() if _class_of(each.like) not in learned}
    for kind, count in here:
        if (own := _class_of(kind.job)) in learned:
            jobs = max(came[own], present[own]) * count / present[own]
            kinds[kind.key] = Arrivals(like=kind.job, jobs=jobs, work=kind.job.work)
    return Demand(kinds=kinds, hours=hours)


def _class_of(job: Job) -> Hashable:
    """The facts of a job that stay as they are while its speed is learned."""
    return (job.model, job.weight, job.max_gpus, job.min_on_demand)
