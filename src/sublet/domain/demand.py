"""Which jobs come, kind by kind: forecast, or counted so far; and what those that are done have needed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from sublet.domain.job import Job
from sublet.domain.quantity import at_least, positive


def kind_of(job: Job) -> Hashable:
    """Jobs of one kind differ in size, time and request only: equally good choices for one are so for the others."""
    pauses = (job.restart_s, job.checkpoint_every_s, job.checkpoint_write_s, job.survives, job.pauses)
    return (job.model, job.speed, job.weight, job.min_gpus, job.max_gpus, job.min_on_demand, job.pools, pauses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Jobs of one kind; `like` is one of them."""

    like: Job
    jobs: float
    work: float  # of one job, the mean

    def __post_init__(self) -> None:
        at_least("jobs", self.jobs, 0.0)
        positive("work", self.work)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """So many jobs of each kind within `hours`. Each is itself alone, so that what follows from it can be kept."""

    kinds: Mapping[Hashable, Arrivals] = field(default_factory=dict)
    hours: float = 0.0

    def __post_init__(self) -> None:
        at_least("hours", self.hours, 0.0)

    @classmethod
    def from_jobs(cls, jobs: Iterable[Job], hours: float) -> Demand:
        """Demand of these jobs, if all of them come within `hours`."""
        like: dict[Hashable, Job] = {}
        count: dict[Hashable, int] = {}
        work: dict[Hashable, float] = {}
        for job in jobs:
            if math.isinf(job.work):  # it does not tell how much work comes
                continue
            kind = kind_of(job)
            like.setdefault(kind, job)
            count[kind] = count.get(kind, 0) + 1
            work[kind] = work.get(kind, 0.0) + job.work
        kinds = {kind: Arrivals(like=like[kind], jobs=n, work=work[kind] / n) for kind, n in count.items()}
        return cls(kinds=kinds, hours=hours)


KEPT = 1000  # the newest: what ran long ago tells less of what runs today


class Needed(NamedTuple):
    """By one job, from its beginning to its end."""

    group: str
    work: float  # in the unit of its group
    gpu_h: float  # that it held, pauses included


def group_of(job: Job) -> str:
    """Jobs of one group are thought to be alike: the same model, or the same script; "" = this one is alone."""
    return job.model or job.group


@dataclass(frozen=True, eq=False)
class Ended:
    """The newest last. Each is itself alone, so that what follows from it can be kept."""

    jobs: tuple[Needed, ...] = ()

    def with_one_more(self, job: Job, gpu_h: float) -> Ended:
        """A job without an end tells nothing of the needs of others."""
        return self if math.isinf(job.work) else Ended((*self.jobs, Needed(group_of(job), job.work, gpu_h))[-KEPT:])

    @cached_property
    def work_by_group(self) -> Mapping[str, tuple[float, ...]]:
        """Work of the jobs of each group, the least first."""
        found: dict[str, list[float]] = {}
        for each in self.jobs:
            if each.group:
                found.setdefault(each.group, []).append(each.work)
        return {group: tuple(sorted(works)) for group, works in found.items()}

    @cached_property
    def gpu_hours(self) -> tuple[float, ...]:
        """GPU-hours of all jobs, the least first."""
        return tuple(sorted(each.gpu_h for each in self.jobs))

    def gpu_hours_from(self, largest: int) -> float:
        """GPU-hours of so many of the largest jobs together. Cost: O(1)."""
        return self._from_the_largest[largest]

    @cached_property
    def _from_the_largest(self) -> tuple[float, ...]:
        return (0.0, *accumulate(reversed(self.gpu_hours)))
