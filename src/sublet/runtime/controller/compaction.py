"""Keeps the store small: what no start needs is put into the archive, and then cut from the log and from the history.

    events                ... | snapshot | ... | snapshot | newest events
    cut up to here -----------^          ^-- a start reads from here

A start reads the newest snapshot and the events after it; if that snapshot is damaged, the one before. So all up to the
older of the two can go, once it is on disk elsewhere. Lines are compressed and written beside everything else; the cut
is a transaction of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict

from sublet.errors import BadInput
from sublet.machine.files import FILES, Files
from sublet.runtime.archive import Kept, WholeLog, archive_lines
from sublet.runtime.controller.alarms import AlarmKind, Alarms
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.paces import PACES, Paces
from sublet.runtime.store import SNAPSHOTS_KEPT, Store

__all__ = ["Compaction"]


class Compaction:
    """Of one store. `look` now and then; work is done beside everything else."""

    def __init__(
        self, inbox: Inbox, *, store: Store, alarms: Alarms, files: Files = FILES, paces: Paces = PACES
    ) -> None:
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
        """What to cut: its first and last number; None = not worth a file yet."""
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
