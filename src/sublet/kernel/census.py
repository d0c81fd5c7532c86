"""Counts the jobs that arrive, kind by kind, for policies that learn what to expect."""

from __future__ import annotations

from collections.abc import Hashable

from sublet.domain.demand import Arrivals, Demand, kind_of
from sublet.domain.job import Job

__all__ = ["Census"]

STALE = 1 / 64  # a count may lag behind by this share: what follows from it is then worked out O(log jobs) times


class Census:
    """`demand` is what has arrived, brought up to date whenever the number of jobs has grown by the share STALE."""

    def __init__(self) -> None:
        self.demand = Demand()
        self._began_s = 0.0
        self._kinds: dict[Hashable, tuple[Job, int, float]] = {}  # one of them, how many, their work together
        self._jobs = 0
        self._next = 1

    def note(self, job: Job, now_s: float) -> None:
        """One more."""
        if not self._jobs:
            self._began_s = now_s
        kind = kind_of(job)
        like, jobs, work = self._kinds.get(kind, (job, 0, 0.0))
        self._kinds[kind] = (like, jobs + 1, work + job.work)
        self._jobs += 1
        if self._jobs >= self._next:
            self._next = self._jobs + 1 + int(self._jobs * STALE)
            counted = self._kinds.items()
            kinds = {kind: Arrivals(like=like, jobs=n, work=total / n) for kind, (like, n, total) in counted}
            self.demand = Demand(kinds=kinds, hours=(now_s - self._began_s) / 3600)
