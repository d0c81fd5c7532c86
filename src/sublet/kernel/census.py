"""Counts the jobs that arrive, kind by kind, and keeps those that are done, for policies that learn what to expect."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from sublet.domain.demand import Arrivals, Demand, Ended, Needed, kind_of
from sublet.domain.job import Job
from sublet.domain.units import SECONDS_PER_H
from sublet.kernel.values_json import to_plain

STALE = 1 / 64  # a count may lag behind by this share: what follows from it is then worked out O(log jobs) times


class Census:
    """`demand` is what has arrived, brought up to date whenever the number of jobs has grown by the share STALE."""

    def __init__(self) -> None:
        self.demand, self.ended = Demand(), Ended()
        self._began_s = 0.0
        self._kinds: dict[Hashable, tuple[Job, int, float]] = {}  # one of them, how many, their work together
        self._jobs = 0
        self._next = 1

    def note(self, job: Job, now_s: float) -> None:
        """One more; what has no end does not tell how much work comes."""
        if math.isinf(job.work):
            return
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
            self.demand = Demand(kinds=kinds, hours=(now_s - self._began_s) / SECONDS_PER_H)

    def note_end(self, job: Job, gpu_s: float) -> None:
        """It has done all its work, and held its GPUs for so long."""
        self.ended = self.ended.with_one_more(job, gpu_s / SECONDS_PER_H)

    def facts(self) -> dict[str, Any]:
        """For a snapshot; beside what is counted now stands what `demand` was last told."""
        seen = self.demand.kinds
        return {
            "began_s": self._began_s,
            "kinds": [[to_plain(like), jobs, work] for like, jobs, work in self._kinds.values()],
            "seen": [[seen[kind].jobs, seen[kind].work] if kind in seen else None for kind in self._kinds],
            "hours": self.demand.hours,
            "jobs": self._jobs,
            "next": self._next,
            "ended": [list(needed) for needed in self.ended.jobs],
        }

    def restore(self, facts: Mapping[str, Any], job_from: Callable[[Mapping[str, Any]], Job]) -> None:
        """Go on from there. Kinds that today's knowledge of speeds cannot tell apart are one."""
        seen: dict[Hashable, Arrivals] = {}
        for (text, jobs, work), noted in zip(facts["kinds"], facts["seen"], strict=True):
            like = job_from(text)
            kind = kind_of(like)
            first, before, work_before = self._kinds.get(kind, (like, 0, 0.0))
            self._kinds[kind] = (first, before + jobs, work_before + work)
            if noted is not None:
                old = seen.get(kind)
                total = noted[0] + (0 if old is None else old.jobs)
                mean = noted[1] if old is None else (noted[0] * noted[1] + old.jobs * old.work) / total
                seen[kind] = Arrivals(like=first, jobs=total, work=mean)
        self.demand = Demand(kinds=seen, hours=facts["hours"])
        self.ended = Ended(tuple(Needed(*each) for each in facts.get("ended", ())))  # not in older snapshots
        self._began_s, self._jobs, self._next = facts["began_s"], facts["jobs"], facts["next"]
