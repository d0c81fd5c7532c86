"""Puts jobs that ended long ago on the shelf, and gives back the one that somebody asks for.

What they cost goes into one account of all of them, to the grain, and comes out of it again: the bill adds up either
way. It is done with a snapshot, in its transaction: what is on the shelf is in no later snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sublet.runtime.controller.bill import Account, Bill
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.paces import PACES, Paces
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.stored_jobs import StoredJobs
from sublet.runtime.controller.table import JobTable
from sublet.runtime.shelf import Shelf, ShelfSums

__all__ = ["EARLIER", "Shelving"]

EARLIER = ""  # whose account the jobs on the shelf share; no job is called so


class Shelving:
    """Of one controller."""

    def __init__(
        self, inbox: Inbox, *, table: JobTable, bill: Bill, shelf: Shelf, stored: StoredJobs, paces: Paces = PACES
    ) -> None:
        self._inbox, self._table, self._bill, self._paces = inbox, table, bill, paces
        self._stored, self.shelf = stored, shelf
        self._asked: set[str] = set()  # taken back in this life: they stay

    def clear(self) -> None:
        """In the transaction of a snapshot, when the facts of all jobs are saved and before it is made."""
        live, jobs = self._table.live, self._inbox.kernel.jobs
        ended = [r for r in self._table.records.values() if r.id not in live and r.outcome and r.id not in jobs]
        if len(ended) < self._paces.jobs_kept + self._paces.jobs_shelved:
            return
        ended.sort(key=lambda record: record.ended_s or 0.0)
        for record in ended[: len(ended) - self._paces.jobs_kept]:
            if record.id not in self._asked:
                self._put(record)

    def _put(self, record: JobRecord) -> None:
        account = asdict(self._bill.jobs.pop(record.id))
        sums = ShelfSums(steps_lost=record.steps_lost, noticed=record.noticed, unnoticed=record.unnoticed)
        self.shelf.put(record.id, account=account, name=record.spec.name, sums=sums)
        self._book(account, 1)
        self._table.put_away(record)
        self._table.submitted.discard(record.id)

    def take_back(self, job_id: str) -> JobRecord | None:
        """The record of a job that is on the shelf. A snapshot must follow, in the same transaction."""
        account = self.shelf.take(job_id)
        if account is None:
            return None
        self._book(account, -1)
        self._bill.jobs[job_id] = Account(**account)
        self._asked.add(job_id)
        record = self._stored.read_one(job_id)
        self._table.lay_out(record)
        self._table.submitted.add(job_id)
        return record

    def fold(self) -> None:
        """After a start from an older snapshot: it still has accounts of jobs that are on the shelf by now."""
        known = self._table.records.keys() | self._inbox.kernel.jobs.keys() | {EARLIER}
        for job_id in self._bill.jobs.keys() - known:
            self._book(asdict(self._bill.jobs.pop(job_id)), 1)

    def _book(self, account: Mapping[str, int], sign: int) -> None:
        whole = self._bill.jobs[EARLIER]
        for purpose, grains in account.items():
            setattr(whole, purpose, getattr(whole, purpose) + sign * grains)
