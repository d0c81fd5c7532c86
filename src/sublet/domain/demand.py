"""Which jobs come, kind by kind: what a forecast says, or what was counted so far."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from sublet.domain.job import Job
from sublet.domain.quantity import at_least, positive

__all__ = ["Arrivals", "Demand", "kind_of"]


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
