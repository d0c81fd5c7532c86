"""How large jobs were that did not say: files that survive a restart, and that a person can read.

A group is all jobs that run the same script, to the letter, or where no script can be read those of the same name. A
file is a table of jobs with the hours of one worker that each has had; the newest count.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from sublet.runtime.controller.profile_store import script_digest, text_of
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import make_private, private_file

__all__ = ["SizeFiles", "group_of"]

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
    """What is readable of it."""
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
