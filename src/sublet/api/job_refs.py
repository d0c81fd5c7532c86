"""Which job is meant: its id, its name, or the beginning of its id that no other has."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.errors import NoSuchJob
from sublet.runtime.controller_api.views import ENDED, JobView

__all__ = ["job_id_from"]


def job_id_from(asked: str, jobs: Sequence[JobView]) -> str:
    """An id is itself; of several jobs with one name, the one that has not ended; else a unique prefix of an id."""
    if any(job["id"] == asked for job in jobs):
        return asked
    named = [job for job in jobs if job["name"] == asked]
    alive = [job for job in named if job["phase"] not in ENDED]
    found = alive or named[-1:]  # among those that have ended, the last is meant
    if not found and asked:
        found = [job for job in jobs if job["id"].startswith(asked)] or [
            job for job in jobs if job["name"].startswith(asked)
        ]
    ids = [job["id"] for job in found]
    if len(ids) == 1:
        return ids[0]
    raise NoSuchJob(asked, [text for job in jobs for text in (job["id"], job["name"])], several=ids)
