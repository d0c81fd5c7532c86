"""How large scripts are thought to be that do not say: the rule of `perf.sizes`, fed by what happens here.

Jobs of the group that have finished are in files, over restarts; those that run are noted as they are looked at; what
all jobs have needed, of any group, is the kernel's. Sizes are in hours of one worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

import numpy as np

from sublet.domain.ended import Ended
from sublet.domain.quantity import counted
from sublet.perf.sizes import UNKNOWN_H, Had, gpu_rate_of, left_by_all_h, left_by_group_h
from sublet.runtime.controller.size_files import SizeFiles

__all__ = ["SizeBeliefs"]

NOTHING = Had()  # of a job that comes


class SizeBeliefs:
    """`there` are the jobs that have not ended, and `ended` is what those needed that have, as of now."""

    def __init__(
        self,
        files: SizeFiles,
        *,
        there: Callable[[], Collection[str]],
        ended: Callable[[], Ended],
        newcomer_h: float = UNKNOWN_H,
    ) -> None:
        self._files, self._there, self._ended, self._newcomer_h = files, there, ended, newcomer_h
        self._had_h: defaultdict[str, dict[str, float]] = defaultdict(dict)  # group -> job -> GPU-hours when noted last
        self._first: dict[str, str] = {}  # group -> the job of it that has had most

    def size_h(self, group: str, workers: int = 1, had: Had = NOTHING) -> float:
        """From its beginning to its end, of a job that runs on no fewer workers."""
        if not group:
            return self._newcomer_h  # its session will say
        gpu_rate = gpu_rate_of(workers)
        left_h = left_by_group_h(
            had,
            self._files.of(group),
            gpu_rate=gpu_rate,
            otherwise_h=left_by_all_h(had.gpu_h, self._ended(), newcomer_h=self._newcomer_h / gpu_rate),
            most_had_h=max(had.gpu_h, self._most_had_h(group)),
        )
        return had.done + gpu_rate * left_h

    def note(self, group: str, job_id: str, gpu_h: float) -> None:
        """A job that has not ended has had so much: while none of its group is done, its siblings are told by it."""
        had_h = self._had_h[group]
        had_h[job_id] = gpu_h
        if gpu_h >= had_h.get(self._first.get(group, ""), 0.0):
            self._first[group] = job_id

    def keep(self, group: str, job_id: str, hours: float) -> None:
        """It has finished: from now on its group goes by those that are done."""
        self._had_h.pop(group, None)
        self._first.pop(group, None)
        self._files.keep(group, job_id, hours)

    def knows(self, group: str) -> bool:
        """Whether any job of a group has finished."""
        return bool(group and self._files.of(group))

    def describe(self, group: str, size_h: float, had_h: float = 0.0) -> str:
        """Whence the size of a job is known that is thought to be so large, and has had so much of it."""
        more = f"it has had {had_h:.2g} h of one worker, and {size_h - had_h:.2g} h more are expected"
        if hours := self._files.of(group):
            spread = f"median {np.quantile(hours, 0.5):.2g} h, p90 {np.quantile(hours, 0.9):.2g} h"
            return f"its size is learned from {counted(len(hours), 'finished job')} of this group: {spread}; {more}"
        so_far = "no job of its group has finished"
        if most_h := self._most_had_h(group):
            so_far += f", and one that has not has had {most_h:.2g} GPU-hours"
        return f"its size is not known, and {so_far}: {more}"

    def _most_had_h(self, group: str) -> float:
        """Who was cancelled or has failed tells nothing. Cost: O(1), but when the first of them is gone."""
        there, had_h = self._there(), self._had_h.get(group, {})
        if (first := self._first.get(group)) is not None and first not in there:
            self._had_h[group] = had_h = {job_id: gpu_h for job_id, gpu_h in had_h.items() if job_id in there}
            self._first.pop(group)
            if had_h:
                self._first[group] = max(had_h, key=had_h.__getitem__)
        return had_h.get(self._first.get(group, ""), 0.0)
