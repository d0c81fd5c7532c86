"""The curve of a job's loss, for whoever begins to look late."""

from __future__ import annotations

from collections.abc import Callable

from sublet.runtime.controller.records import JobRecord

__all__ = ["Curves"]


class Curves:
    """Of one controller; `record` finds a job, or raises NoSuchJob."""

    def __init__(self, record: Callable[[str], JobRecord]) -> None:
        self._record = record

    def of(self, job_id: str) -> list[tuple[int, float]]:
        """(step, loss), since this controller began; some hundred at most."""
        return list(self._record(job_id).curve.points)
