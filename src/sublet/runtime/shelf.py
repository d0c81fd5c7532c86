"""Jobs that ended long ago: in the store, packed, and read only when one of them is asked for.

The state that a controller reads at its start, and writes into every snapshot, is then bounded, however many jobs there
were.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from sublet.runtime.store import Store

__all__ = ["Shelf", "ShelfSums"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfSums:
    """Over all jobs on it."""

    jobs: int = 0
    steps_lost: int = 0
    noticed: int = 0  # preemptions
    unnoticed: int = 0


class Shelf:
    """The packed jobs of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, job_id: str, *, account: Mapping[str, int], name: str, sums: ShelfSums) -> None:
        """Away from the jobs that are read at a start; `account` is what was spent on it, to the grain."""
        with self._store.transaction():
            ((number, key, spec, facts),) = self._store.query(
                "SELECT number, key, spec, facts FROM jobs WHERE job_id = ?", (job_id,)
            )
            packed = zlib.compress(json.dumps([spec, facts, dict(account)]).encode())
            row = (job_id, number, key, name, sums.steps_lost, sums.noticed, sums.unnoticed, packed)
            self._store.write("INSERT OR REPLACE INTO shelf VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._store.write("DELETE FROM jobs WHERE job_id = ?", (job_id,))

    def take(self, job_id: str) -> dict[str, int] | None:
        """Back among the jobs; its account. None if there is none of this name."""
        with self._store.transaction():
            found = self._store.query("SELECT number, key, packed FROM shelf WHERE job_id = ?", (job_id,))
            if not found:
                return None
            ((number, key, packed),) = found
            spec, facts, account = json.loads(zlib.decompress(packed))
            self._store.write("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", (job_id, number, key, spec, facts))
            self._store.write("DELETE FROM shelf WHERE job_id = ?", (job_id,))
        return {str(purpose): int(grains) for purpose, grains in account.items()}

    def by_key(self, key: str) -> tuple[str, str] | None:
        """(id, name) of the job that was submitted under this key."""
        found = self._store.query("SELECT job_id, name FROM shelf WHERE key = ?", (key,))
        return (str(found[0][0]), str(found[0][1])) if found else None

    def called(self, name: str) -> int:
        """How many have this name: no further one gets the id of one of them."""
        return int(self._store.query("SELECT COUNT(*) FROM shelf WHERE name = ?", (name,))[0][0])

    def sums(self) -> ShelfSums:
        """Sums over all of them."""
        sums = "COUNT(*), COALESCE(SUM(steps_lost), 0), COALESCE(SUM(noticed), 0), COALESCE(SUM(unnoticed), 0)"
        ((jobs, lost, noticed, unnoticed),) = self._store.query(f"SELECT {sums} FROM shelf", ())  # noqa: S608 - our own
        return ShelfSums(jobs=jobs, steps_lost=lost, noticed=noticed, unnoticed=unnoticed)
