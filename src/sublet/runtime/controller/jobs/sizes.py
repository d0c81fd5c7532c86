"""How large jobs are that do not say: believed by the rule of `perf.sizes`, learned when they finish, kept in files.

A group is all jobs that run the same script, to the letter, or where no script can be read those of the same name. A
file is a table of jobs with the hours of one worker that each has had; the newest count. Jobs that run are noted as
they are looked at; what all jobs have needed, of any group, is the kernel's. Nothing is learned from a job that was
cancelled or has failed, nor from one that ended while no controller was there.
"""

from __future__ import annotations

import csv
import io
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from sublet.domain import events as news
from sublet.domain.demand import Ended
from sublet.domain.plan import JobState
from sublet.domain.quantity import counted
from sublet.perf.sizes import UNKNOWN_H, Had, gpu_rate_of, had_by, left_by_all_h, left_by_group_h
from sublet.runtime.controller.memory import Context, JobRecord
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import make_private, private_file
from sublet.runtime.profiles.store import script_digest, text_of

COLUMNS = ("job", "hours")
MOST = 200  # jobs of a group: the oldest give way
DIGITS = 16
LEAST_H = 1e-6  # of a size that is learned from


def group_of(spec: JobSpec) -> str:
    """The name of its group; "" for a job that says how large it is, or whose session will."""
    if spec.sdk or spec.work is not None:
        return ""
    digest = script_digest(spec)
    return f"script-{digest[:DIGITS]}" if digest else f"name-{spec.name}"  # a name can stand in a path


class SizeFiles:
    """A folder of them, a file for each group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, float]] = {}  # group -> job -> hours

    def of(self, group: str) -> tuple[float, ...]:
        """Hours of those of a group, the least first."""
        return tuple(sorted(self._jobs(group).values())) if group else ()

    def keep(self, group: str, job: str, hours: float) -> None:
        """A job has finished after so many; told twice, it counts once."""
        if not LEAST_H <= hours < math.inf:
            return
        jobs = self._jobs(group)
        jobs.pop(job, None)
        jobs[job] = hours
        while len(jobs) > MOST:
            del jobs[next(iter(jobs))]
        make_private(self._folder)
        path = self._folder / f"{group}.csv"
        beside = path.with_suffix(".new")
        private_file(beside)
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerows([COLUMNS, *((job, f"{hours:.6g}") for job, hours in jobs.items())])
        beside.write_text(text.getvalue(), encoding="utf-8")
        beside.replace(path)

    def _jobs(self, group: str) -> dict[str, float]:
        if group not in self._known:
            self._known[group] = _read(self._folder / f"{group}.csv")
        return self._known[group]


def _read(path: Path) -> dict[str, float]:
    """Its readable rows."""
    try:
        rows = list(csv.reader(io.StringIO(text_of(path))))
    except (OSError, csv.Error):
        return {}
    found = {}
    for job, hours in (row for row in rows if len(row) == len(COLUMNS)):
        try:
            value = float(hours)
        except ValueError:
            continue
        if LEAST_H <= value < math.inf:
            found[job] = value
    return found


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
        """Jobs that were cancelled or have failed tell nothing. Cost: O(1), but when the first of them is gone."""
        there, had_h = self._there(), self._had_h.get(group, {})
        if (first := self._first.get(group)) is not None and first not in there:
            self._had_h[group] = had_h = {job_id: gpu_h for job_id, gpu_h in had_h.items() if job_id in there}
            self._first.pop(group)
            if had_h:
                self._first[group] = max(had_h, key=had_h.__getitem__)
        return had_h.get(self._first.get(group, ""), 0.0)


log = logging.getLogger("sublet.controller")
WORTH_TELLING = 0.1  # relative change of a size that is worth a new plan


class LearnedSizes:
    """Of all jobs that do not say; `relearn` tells the kernel what is known of a job now."""

    def __init__(self, context: Context, relearn: Callable[[JobRecord], None], beliefs: SizeBeliefs) -> None:
        self._inbox, self._paces, self._relearn, self._beliefs = context.inbox, context.host.paces, relearn, beliefs
        self._looked_wall: dict[str, float] = defaultdict(lambda: -math.inf)

    def update(self, record: JobRecord, wall_s: float) -> None:
        """Let the kernel hear of another size, if what is expected has changed since it was told."""
        state = self._inbox.kernel.jobs.get(record.id)
        if not record.size_group or state is None or wall_s - self._looked_wall[record.id] < self._paces.learn_s:
            return
        self._looked_wall[record.id] = wall_s
        now_s = self._inbox.now_s()
        had = had_by(state, now_s)
        record.had_h = had.done
        self._beliefs.note(record.size_group, record.id, had.gpu_h)
        told_h, size_h = record.size_h, self._beliefs.size_h(record.size_group, record.spec.min_workers, had)
        if abs(size_h / told_h - 1.0) > WORTH_TELLING:
            record.size_h = size_h
            self._relearn(record)
            self._inbox.queue(news.ProgressReported(now_s, record.id, record.share))

    def finished(self, record: JobRecord, state: JobState | None) -> None:
        """It has come to its end."""
        self._looked_wall.pop(record.id, None)
        if record.size_group and state is not None:
            try:
                self._beliefs.keep(record.size_group, record.id, had_by(state, self._inbox.now_s()).done)
            except OSError:  # the next jobs are guessed at, and this one has finished all the same
                log.exception("what is learned of %s cannot be written", record.size_group)
