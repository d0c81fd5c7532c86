"""What the controller must not forget, in one SQLite file: the kernel's events, the jobs, and a history for people.

The log of events is the truth: a kernel that hears them again is where the last one was. A row holds the event and the
orders that followed it, and is on disk before any of the orders is carried out, so every call to a cloud has its
intent written first. Commits are durable (`synchronous=FULL`): what was promised survives a power cut.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sublet.errors import BadInput
from sublet.runtime.private import private_file

__all__ = ["MetaKey", "Store", "StoredRow", "connect_file"]

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, line TEXT NOT NULL);
CREATE TABLE jobs (
  job_id TEXT PRIMARY KEY, number INTEGER NOT NULL, key TEXT UNIQUE, spec TEXT NOT NULL, facts TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE history (
  seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, at TEXT NOT NULL, kind TEXT NOT NULL,
  job_id TEXT NOT NULL, node_id TEXT NOT NULL, text TEXT NOT NULL, facts TEXT NOT NULL
);
CREATE INDEX history_of_job ON history (job_id, seq);
"""
ADDED_TABLES = """
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, kernel INTEGER NOT NULL, state TEXT NOT NULL);
"""  # what a store of the same version may lack
SNAPSHOTS_KEPT = 2  # beside the first of each version of the kernel


class MetaKey(StrEnum):
    """Names of the single facts. They are in stores of before, so they stay."""

    SCHEMA = "schema"  # version of the tables
    SERVER_ID = "server_id"  # what the nodes of this controller are marked with
    LIFE = "life"  # how many controllers had this store before
    HEADER = "header"  # first line of the log: offers, limits and budget that it began with
    BUDGET = "budget"  # of the settings, when it was last applied
    BUDGET_IN_FORCE = "budget_in_force"  # as it was changed at run time
    MOVED_TO = "moved_to"  # where its owner says that the state directory is now
    SECRET = "secret"  # noqa: S105 - the name of it; what the tokens of nodes follow from
    MARK = "mark"  # cloud time and wall time, lately
    EPOCH = "epoch"  # wall time of the first start; left by versions before marks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A row of history with its number and its time on the wall."""

    seq: int
    at_s: float
    at: str
    kind: str
    job_id: str
    node_id: str
    text: str
    facts: Mapping[str, Any]


def connect_file(path: Path) -> sqlite3.Connection:
    """A file of its owner's alone, whose commits are on disk when they return."""
    _make_private(path)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    return db


def _make_private(path: Path) -> None:
    """The tokens of nodes follow from what is in it. SQLite gives its other files the mode of the first."""
    private_file(path)
    for end in ("-wal", "-shm"):
        if (beside := path.with_name(path.name + end)).exists():
            private_file(beside)


class Store:
    """One file, one writer. Every verb is one transaction, or part of the one that `transaction` opens."""

    def __init__(self, path: Path, *, connect: Callable[[Path], sqlite3.Connection] = connect_file) -> None:
        self.path = path
        try:
            self._db = connect(path)
            self._prepare()
            self._refuse_damage()
        except (sqlite3.DatabaseError, OSError) as error:
            hint = "nothing was changed; move the file away to begin anew, after 'sublet gc' has found what is rented"
            raise BadInput(path, f"cannot be used as a store ({error})", hint=hint) from error
        self._depth = 0

    def _prepare(self) -> None:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            self._db.executescript(f"BEGIN; {SCHEMA} COMMIT;")
            self.put(MetaKey.SCHEMA, str(SCHEMA_VERSION))
        self._db.executescript(ADDED_TABLES)
        version = self.get(MetaKey.SCHEMA)
        if version != str(SCHEMA_VERSION):
            raise BadInput(self.path, f"is of version {version}, this program reads {SCHEMA_VERSION}")

    def _refuse_damage(self) -> None:
        """Better now than in the middle of a replay."""
        (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; may be nested."""
        self._depth += 1
        try:
            if self._depth == 1:
                self._db.execute("BEGIN IMMEDIATE")
            yield
        except BaseException:
            if self._depth == 1 and self._db.in_transaction:  # where it is not, nothing was begun
                self._db.execute("ROLLBACK")
            raise
        else:
            if self._depth == 1:
                self._db.execute("COMMIT")
        finally:
            self._depth -= 1

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    # ------------------------------------------------------------------ facts

    def get(self, key: str) -> str | None:
        """A fact by name."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, value: str) -> None:
        """Remember it."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # ------------------------------------------------------------------ the log

    def append(self, at_s: float, line: str) -> None:
        """One event with the orders that followed it."""
        self._db.execute("INSERT INTO events (at_s, line) VALUES (?, ?)", (at_s, line))

    def lines(self, *, after: int = 0, until: int | None = None) -> Iterator[str]:
        """The log as a journal: from the start, or from the event after this one on; to its end, or to that event."""
        last = self.last_seq() if until is None else until
        found = "SELECT line FROM events WHERE seq > ? AND seq <= ? ORDER BY seq"
        for (line,) in self._db.execute(found, (after, last)):
            yield line

    def last_seq(self) -> int:
        """The number of the last event."""
        (seq,) = self._db.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()
        return int(seq)

    def last_s(self) -> float:
        """The time of the last event."""
        row = self._db.execute("SELECT at_s FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        return 0.0 if row is None else float(row[0])

    # ------------------------------------------------------------------ snapshots

    def add_snapshot(self, kernel: int, state: str) -> None:
        """All that is known after the last event. Of older ones the last stays, and the first of each version."""
        self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (self.last_seq(), kernel, state))
        self._db.execute(
            "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?) "
            "AND seq NOT IN (SELECT MIN(seq) FROM snapshots GROUP BY kernel)",
            (SNAPSHOTS_KEPT,),
        )

    def snapshots(self) -> list[tuple[int, str]]:
        """(event, state), the newest first."""
        return list(self._db.execute("SELECT seq, state FROM snapshots ORDER BY seq DESC LIMIT ?", (SNAPSHOTS_KEPT,)))

    def first_snapshot(self, kernel: int) -> tuple[int, str] | None:
        """(event, state): where this version of the kernel began."""
        found = "SELECT seq, state FROM snapshots WHERE kernel = ? ORDER BY seq LIMIT 1"
        row = self._db.execute(found, (kernel,)).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    # ------------------------------------------------------------------ jobs

    def add_job(self, job_id: str, key: str, spec: str) -> None:
        """A job came; `key` tells a repeated submission."""
        (number,) = self._db.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM jobs").fetchone()
        row = (job_id, number, key or None, spec, "{}")
        self._db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", row)

    def job_by_key(self, key: str) -> tuple[str, str] | None:
        """(id, spec) of the job that was submitted under this key."""
        row = self._db.execute("SELECT job_id, spec FROM jobs WHERE key = ?", (key,)).fetchone()
        return None if row is None else (row[0], row[1])

    def change_job(self, job_id: str, *, spec: str | None = None, facts: str | None = None) -> None:
        """Another specification, or other facts, as JSON."""
        if spec is not None:
            self._db.execute("UPDATE jobs SET spec = ? WHERE job_id = ?", (spec, job_id))
        if facts is not None:
            self._db.execute("UPDATE jobs SET facts = ? WHERE job_id = ?", (facts, job_id))

    def jobs(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(id, spec, facts) in order of submission."""
        rows = self._db.execute("SELECT job_id, spec, facts FROM jobs ORDER BY number")
        return [(job_id, spec, json.loads(facts)) for job_id, spec, facts in rows]

    # ------------------------------------------------------------------ history

    def add_history(self, rows: Iterable[tuple[float, str, str, str, str, str, str]]) -> None:
        """(at_s, at, kind, job, node, text, facts as JSON)."""
        self._db.executemany(
            "INSERT INTO history (at_s, at, kind, job_id, node_id, text, facts) VALUES (?, ?, ?, ?, ?, ?, ?)", rows
        )

    def history(self, job_id: str | None, after: int, limit: int) -> Sequence[StoredRow]:
        """Rows with `seq` above `after`, oldest first."""
        where, values = ("AND job_id = ?", (after, job_id, limit)) if job_id is not None else ("", (after, limit))
        rows = self._db.execute(f"SELECT * FROM history WHERE seq > ? {where} ORDER BY seq LIMIT ?", values)  # noqa: S608 - `where` is one of our own texts
        return [
            StoredRow(
                seq=seq, at_s=at_s, at=at, kind=kind, job_id=job, node_id=node, text=text, facts=json.loads(facts)
            )
            for seq, at_s, at, kind, job, node, text, facts in rows
        ]
