"""A workload: the jobs of one trace or one generator, and all that was assumed to make them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sublet.domain.job import Job
from sublet.domain.quantity import named, positive, whole
from sublet.domain.shape import packed
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import BadInput

_ARRIVAL = operator.attrgetter("submit_s", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """At least one job, in order of arrival (ties by id), each id once.

    `notes` tells every repair and assumption that stands between the source and these jobs, for people to read.
    """

    name: str
    jobs: tuple[Job, ...]
    source: str = ""
    licence: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named("workload name", self.name)
        if not self.jobs:
            raise BadInput(self.name, "there is no job in it", hint="a workload needs at least one job")
        if len({job.id for job in self.jobs}) < len(self.jobs):
            raise BadInput(
                self.name,
                f"job id {_first_repeated(self.jobs)!r} is used twice",
                hint="give every job an id of its own",
            )
        object.__setattr__(self, "jobs", tuple(sorted(self.jobs, key=_ARRIVAL)))

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.jobs[-1].submit_s - self.jobs[0].submit_s

    def gpu_hours(self, gpu: str = "", gpus_per_node: int = 8) -> float:
        """GPU-hours if every job ran alone, from start to end, on the GPUs that it asked for, of kind `gpu`.

        The kind may stay empty where the speeds do not depend on it, as those of traces that state durations.
        """
        gpu_s = sum(
            job.gpus * job.speed.seconds(gpu, packed(job.gpus, gpus_per_node), 0.0, job.work) for job in self.jobs
        )
        return gpu_s / SECONDS_PER_H

    def head(self, n_jobs: int) -> Workload:
        """The first `n_jobs` arrivals, or all if there are fewer."""
        whole("n_jobs", n_jobs, 1)
        if n_jobs >= len(self.jobs):
            return self
        note = f"only the first {n_jobs} of {len(self.jobs)} jobs"
        return replace(self, jobs=self.jobs[:n_jobs], notes=(*self.notes, note))

    def scaled(self, load: float) -> Workload:
        """The same jobs arriving `load` times as densely; a deadline keeps its distance from the arrival."""
        positive("load", load)
        if load == 1.0:
            return self
        jobs = tuple(_move_job(job, job.submit_s / load) for job in self.jobs)
        return replace(self, jobs=jobs, notes=(*self.notes, f"arrival times divided by {load:g}"))

    def from_zero(self) -> Workload:
        """The same workload on a clock that starts with the first arrival."""
        first_s = self.jobs[0].submit_s
        if first_s == 0.0:
            return self
        jobs = tuple(_move_job(job, job.submit_s - first_s) for job in self.jobs)
        note = f"the clock starts at the first arrival, {first_s:g} s into the source"
        return replace(self, jobs=jobs, notes=(*self.notes, note))


def _move_job(job: Job, submit_s: float) -> Job:
    deadline_s = None if job.deadline_s is None else submit_s + (job.deadline_s - job.submit_s)
    return replace(job, submit_s=submit_s, deadline_s=deadline_s)


def _first_repeated(jobs: Sequence[Job]) -> str:
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            return job.id
        seen.add(job.id)
    return ""
