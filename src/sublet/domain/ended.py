"""Needs of jobs that are done: all that one may learn of how large others are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from sublet.domain.job import Job

__all__ = ["Ended", "Needed", "group_of"]

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
