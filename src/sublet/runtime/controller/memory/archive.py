"""Keeps the store small: events and history that no start needs are archived, jobs that ended long ago are shelved.

    events                ... | snapshot | ... | snapshot | newest events
    cut up to here -----------^          ^-- a start reads from here

A start reads the newest snapshot and the events after it; if that snapshot is damaged, the one before. So all up to the
older of the two can go, once it is on disk elsewhere. Lines are compressed and written beside everything else; the cut
is a transaction of its own.

The cost of a shelved job goes into one account of all of them, to the grain, and comes out of it again: the bill adds
up either way. Shelving is a part of a snapshot, in its transaction: what is on the shelf is in no later snapshot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from sublet.errors import BadInput
from sublet.machine.files import FILES, Files
from sublet.runtime.archive import Kept, Shelf, ShelfSums, WholeLog, archive_lines
from sublet.runtime.controller.host import PACES, Paces
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.memory.context import Context
from sublet.runtime.controller.memory.records import JobRecord
from sublet.runtime.controller.memory.table import StoredJobs
from sublet.runtime.controller.money import Account
from sublet.runtime.controller.watch import AlarmKind, Alarms
from sublet.runtime.store import SNAPSHOTS_KEPT, Store


class Compaction:
    """Of one store. `look` now and then; work is done beside everything else."""

    def __init__(self, inbox: Inbox, store: Store, alarms: Alarms, files: Files = FILES, paces: Paces = PACES) -> None:
        self._inbox, self._store, self._alarms, self._files, self._paces = inbox, store, alarms, files, paces
        self.busy = False  # something is being cut

    def look(self) -> None:
        """Cut, if there is enough for a file."""
        if not self.busy and self._next() is not None:
            self.busy = True
            self._inbox.spawn(self._cut(), "compaction")

    def lines(self, *, after: int) -> Iterator[str]:
        """The log after this event, out of the archive where that is older than what is left in the store."""
        cut = self._store.cut_until(Kept.EVENTS)
        if after >= cut:
            return self._store.lines(after=after)
        log = WholeLog(self._store, files=self._files)
        if not log.is_whole:
            why = (
                f"no snapshot can be read, and of the {cut} events that were cut from the log the archive is not whole"
            )
            hint = "put a backup of the state directory in its place; 'sublet gc' finds what is rented until then"
            raise BadInput(self._store.path, why, hint=hint)
        return log.lines(after=after)

    def _next(self) -> tuple[Kept, int, int] | None:
        """The next cut: its first and last number; None = not worth a file yet."""
        spare, last_row = self._spare()
        least = self._paces.events_a_file
        for kind, until in ((Kept.EVENTS, spare), (Kept.HISTORY, last_row - self._paces.history_kept)):
            first = self._store.cut_until(kind) + 1
            count = until - first + 1
            if count >= least:  # what would be left is not worth one of its own
                return kind, first, until if count < 2 * least else first + least - 1
        return None

    def _spare(self) -> tuple[int, int]:
        """Up to which event the log is not needed for a start; and the number of the last row of history."""
        newest = "SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?"
        seqs = [int(seq) for (seq,) in self._store.query(newest, (SNAPSHOTS_KEPT,))]
        ((last,),) = self._store.query("SELECT COALESCE(MAX(seq), 0) FROM history")
        return (seqs[-1] if len(seqs) == SNAPSHOTS_KEPT else 0), int(last)

    async def _cut(self) -> None:
        try:
            while (found := self._next()) is not None:
                kind, first, last = found
                self._store.pinned = last
                lines, folder = self._read(kind, first, last), self._store.path.parent
                await asyncio.to_thread(archive_lines, folder, kind, first, lines, files=self._files)
                self._store.cut(kind, last)
        except OSError as error:
            text = f"the log cannot be cut, and grows: its archive cannot be written ({error.strerror or error})"
            self._alarms.sound(AlarmKind.STORE, text)
        finally:
            self.busy, self._store.pinned = False, 0

    def _read(self, kind: Kept, first: int, last: int) -> list[str]:
        if kind is Kept.EVENTS:
            return list(self._store.lines(after=first - 1, until=last))
        rows = self._store.history(None, first - 1, last - first + 1)
        return [json.dumps(asdict(row), separators=(",", ":")) for row in rows if row.seq <= last]


EARLIER = ""  # whose account the jobs on the shelf share; no job is called so


class Shelving:
    """Of one controller."""

    def __init__(self, context: Context, store: Store, stored: StoredJobs) -> None:
        self._inbox, self._table, self._bill = context.inbox, context.table, context.bill
        self._paces = context.host.paces
        self.stored, self.shelf = stored, Shelf(store)
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
        record = self.stored.read_one(job_id)
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
