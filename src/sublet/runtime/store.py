"""The durable state of the controller, in one SQLite file: the kernel's events, the jobs, and a history for people.

The log of events is the truth: a kernel that hears them again is where the last one was. A row holds the event and the
orders that followed it, and is on disk before any of the orders is carried out, so every call to a cloud has its intent
written first. Commits are durable (`synchronous=FULL`): what was promised survives a power cut.

    a new file         all tables and their version, in one transaction
    an older version   is read as it is; the first write of the next controller makes it this one
    a newer version    is refused before anything is written: its program knows what this one does not

Three things have versions: the tables (`SCHEMA_VERSION`), the lines of the log and what the kernel makes of them. A
controller leaves all three, and the name of its program, for the next to see.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sublet import __version__
from sublet.errors import BadInput, StaleController
from sublet.kernel.journal import JOURNAL_VERSION
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.runtime.private import private_file

SCHEMA_VERSION = 2  # 1: the log was never cut, and nothing said whose it is
OLDEST_READ = 1
WORTH_BYTES = 16_000_000  # of empty pages: what is cut at a time fits into less, and is filled again
TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, line TEXT NOT NULL)",
    """CREATE TABLE jobs (
      job_id TEXT PRIMARY KEY, number INTEGER NOT NULL, key TEXT UNIQUE, spec TEXT NOT NULL, facts TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE history (
      seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, at TEXT NOT NULL, kind TEXT NOT NULL,
      job_id TEXT NOT NULL, node_id TEXT NOT NULL, text TEXT NOT NULL, facts TEXT NOT NULL
    )""",
    "CREATE INDEX history_of_job ON history (job_id, seq)",
)
ADDED_TABLES = (  # that a store of an older version may lack
    "CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, kernel INTEGER NOT NULL, state TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS shelf (
      job_id TEXT PRIMARY KEY, number INTEGER NOT NULL, key TEXT UNIQUE, name TEXT NOT NULL,
      steps_lost INTEGER NOT NULL, noticed INTEGER NOT NULL, unnoticed INTEGER NOT NULL, packed BLOB NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS shelf_by_name ON shelf (name)",  # packed jobs are not searched
    "CREATE INDEX IF NOT EXISTS shelf_by_number ON shelf (number)",
    "CREATE INDEX IF NOT EXISTS shelf_by_sums ON shelf (steps_lost, noticed, unnoticed)",
)


class MetaKey(StrEnum):
    """Names of the single facts. They are in stores of before, so they stay."""

    SCHEMA = "schema"  # version of the tables
    PROGRAM = "program"  # of the controller that began last: its version, and those of what it writes
    SERVER_ID = "server_id"  # what the nodes of this controller are marked with
    LIFE = "life"  # how many controllers had this store before
    ERA = "era"  # of the controller that began last: what the numbers of its groups begin with
    HOLDER = "holder"  # a name that only the controller has that began last: the others write nothing any more
    HEADER = "header"  # first line of the log: offers, limits and budget that it began with
    SETTINGS = "settings"  # that the controller which began last was started with
    BUDGET = "budget"  # of the settings, when it was last applied
    BUDGET_IN_FORCE = "budget_in_force"  # as it was changed at run time
    HOUR = "hour"  # what an hour of a job is worth, as it was changed at run time
    MOVED_TO = "moved_to"  # where its owner says that the state directory is now
    SECRET = "secret"  # noqa: S105 - the name of it; what the tokens of nodes follow from
    MARK = "mark"  # cloud time and wall time, lately
    DOUBTED = "doubted"  # cloud time at which a wall clock was last believed, after a boot
    EPOCH = "epoch"  # wall time of the first start; left by versions before marks
    EVENTS_CUT = "events_cut"  # the last event that is not in the log any more, but in the archive
    HISTORY_CUT = "history_cut"  # the last row of history, likewise


def program_facts() -> str:
    """The version of this program, for `MetaKey.PROGRAM`."""
    return json.dumps({"sublet": __version__, "journal": JOURNAL_VERSION, "kernel": KERNEL_VERSION})


def prepare_tables(db: sqlite3.Connection, path: Path) -> None:
    """Make what is missing, all of it or nothing; BadInput if a newer program wrote here."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        _refuse_newer(db, path)
        found = db.execute("SELECT name FROM sqlite_master WHERE name IN ('snapshots', 'shelf_by_sums')").fetchall()
        if len(found) == 2 and _fact(db, MetaKey.SCHEMA) is not None:  # noqa: PLR2004 - the first and the last of them
            return
    db.execute("BEGIN IMMEDIATE")
    try:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            for table in TABLES:
                db.execute(table)
        for table in ADDED_TABLES:
            db.execute(table)
        if (
            _fact(db, MetaKey.SCHEMA) is None
        ):  # new, or an earlier program was ended between its tables and their version
            db.execute("INSERT INTO meta VALUES (?, ?)", (MetaKey.SCHEMA, str(SCHEMA_VERSION)))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _refuse_newer(db: sqlite3.Connection, path: Path) -> None:
    text = _fact(db, MetaKey.SCHEMA)
    if text is None:
        if db.execute("SELECT 1 FROM events UNION ALL SELECT 1 FROM jobs LIMIT 1").fetchone():
            raise BadInput(path, "has a log, and nothing says of which version it is", hint="restore a backup of it")
        return
    try:
        program = json.loads(_fact(db, MetaKey.PROGRAM) or "{}")
        found = {"store": int(text), "journal": int(program.get("journal", 0)), "kernel": int(program.get("kernel", 0))}
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise BadInput(path, f"is of version {text!r}, which is none", hint="restore a backup of it") from None
    known = {"store": SCHEMA_VERSION, "journal": JOURNAL_VERSION, "kernel": KERNEL_VERSION}
    if found["store"] < OLDEST_READ:
        raise BadInput(path, f"is of version {text}, this program reads {OLDEST_READ} to {SCHEMA_VERSION}")
    newer = [
        f"{name} version {found[name]} (this program: {known[name]})" for name in known if found[name] > known[name]
    ]
    if newer:
        by = f"Sublet {program['sublet']}" if program.get("sublet") else "a newer Sublet"
        why = f"was written by {by}, {', '.join(newer)}: this is Sublet {__version__}, and nothing was changed"
        hint = "install that version again, or a newer one; workers train on meanwhile, until their lease ends"
        raise BadInput(path, why, hint=hint)


def _fact(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def give_room_back(db: sqlite3.Connection) -> None:
    """Once a long log was cut, most of the file is empty, and would be looked at by every start."""
    (pages,), (empty,), (size,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
    )
    if empty * size > WORTH_BYTES and empty * 2 > pages:
        with suppress(sqlite3.OperationalError):  # no room to do it in, or a reader: another time
            db.execute("VACUUM")


def refuse_damage(db: sqlite3.Connection) -> None:
    """Better now than in the middle of a replay. It reads the whole file, which is why the log is cut."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)


SNAPSHOTS_KEPT = 2  # beside the first of each version of the kernel, and the one that the log begins with
NEXT_NUMBER = "SELECT 1 + MAX(IFNULL((SELECT MAX(number) FROM jobs), 0), IFNULL((SELECT MAX(number) FROM shelf), 0))"
CUT_TABLES = ("events", "history")
WHOSE = "SELECT key, value FROM meta WHERE key IN ('life', 'holder')"
STORE_FAILURES = (sqlite3.Error, StaleController)  # nothing may be done any more


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
    """One file, one writer. Every verb is one transaction, or part of the one that `transaction` opens.

    A controller claims it (`claim`). From then on every transaction of an earlier owner is refused: that one slept, or
    was cut off, and another goes on.
    """

    def __init__(self, path: Path, *, connect: Callable[[Path], sqlite3.Connection] = connect_file) -> None:
        self.path = path
        self.pinned = 0  # a snapshot that stays: a cut up to its event is under way
        self._depth = 0
        self._claim: tuple[str, str] | None = None  # life and holder, as they must stand in the file; None = a visitor
        try:
            self._db = connect(path)
            prepare_tables(self._db, path)
            refuse_damage(self._db)
        except (sqlite3.DatabaseError, OSError) as error:
            raise BadInput(path, f"cannot be used as a store ({error})", hint=next_step(error)) from error
        self._file = _identity(path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; may be nested. StaleController where another controller has claimed the store since."""
        self._depth += 1
        try:
            if self._depth == 1:
                self._db.execute("BEGIN IMMEDIATE")
                self._refuse_stale()
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

    # ------------------------------------------------------------------ whose it is

    def claim(self, holder: str, *, after: int, facts: Mapping[str, str] | None = None) -> None:
        """The controller of this name, before which there were `after`, has it now; with these facts it begins."""
        give_room_back(self._db)
        with self.transaction():
            if (now := int(self.get(MetaKey.LIFE) or 0)) != after:
                raise StaleController(self.path, life=after + 1, now=now)
            self.put(MetaKey.LIFE, str(after + 1))
            self.put(MetaKey.HOLDER, holder)
            self.put(MetaKey.SCHEMA, str(SCHEMA_VERSION))
            self.put(MetaKey.PROGRAM, program_facts())
            for key, value in (facts or {}).items():
                self.put(key, value)
        self._claim = (str(after + 1), holder)

    def insist(self) -> None:
        """Before an action that no transaction guards: StaleController if the store is another's now."""
        self._refuse_stale()
        if self._file is not None and _identity(self.path) != self._file:
            raise StaleController(self.path, life=int(self.get(MetaKey.LIFE) or 0), now=None)

    def _refuse_stale(self) -> None:
        if self._claim is None:
            return
        found = dict(self._db.execute(WHOSE))
        if (found.get("life"), found.get("holder")) != self._claim:
            raise StaleController(self.path, life=int(self._claim[0]), now=int(found.get("life") or 0))

    # ------------------------------------------------------------------ facts

    def get(self, key: str) -> str | None:
        """A fact by name."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, value: str) -> None:
        """Remember it."""
        self.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def write(self, sql: str, values: tuple[Any, ...]) -> None:
        """One statement, for tables that are not among the verbs."""
        if self._depth:  # a part of what is under way
            self._db.execute(sql, values)
            return
        with self.transaction():
            self._db.execute(sql, values)

    def query(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Likewise."""
        return self._db.execute(sql, values).fetchall()

    # ------------------------------------------------------------------ the log

    def append(self, at_s: float, line: str) -> None:
        """One event with the orders that followed it."""
        self.write("INSERT INTO events (at_s, line) VALUES (?, ?)", (at_s, line))

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
        """All that is known after the last event. Of older ones stay the last, and those that a replay begins with."""
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (self.last_seq(), kernel, state))
            self._db.execute(
                "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?) "
                "AND seq NOT IN (SELECT MIN(seq) FROM snapshots GROUP BY kernel) AND seq NOT IN (?, ?)",
                (SNAPSHOTS_KEPT, self.cut_until("events"), self.pinned),
            )

    def snapshots(self) -> list[tuple[int, str]]:
        """(event, state) of those after which the log has every event, the newest first."""
        found = "SELECT seq, state FROM snapshots WHERE seq >= ? ORDER BY seq DESC LIMIT ?"
        return list(self._db.execute(found, (self.cut_until("events"), SNAPSHOTS_KEPT + 1)))

    def first_snapshot(self, kernel: int) -> tuple[int, str] | None:
        """(event, state): where this version of the kernel began."""
        found = "SELECT seq, state FROM snapshots WHERE kernel = ? ORDER BY seq LIMIT 1"
        row = self._db.execute(found, (kernel,)).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    # ------------------------------------------------------------------ jobs

    def add_job(self, job_id: str, key: str, spec: str) -> None:
        """A job came; `key` tells a repeated submission."""
        with self.transaction():
            (number,) = self._db.execute(NEXT_NUMBER).fetchone()
            self.write("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", (job_id, number, key or None, spec, "{}"))

    def job_by_key(self, key: str) -> tuple[str, str] | None:
        """(id, spec) of the job that was submitted under this key."""
        row = self._db.execute("SELECT job_id, spec FROM jobs WHERE key = ?", (key,)).fetchone()
        return None if row is None else (row[0], row[1])

    def change_job(self, job_id: str, *, spec: str | None = None, facts: str | None = None) -> None:
        """Another specification, or other facts, as JSON."""
        if spec is not None:
            self.write("UPDATE jobs SET spec = ? WHERE job_id = ?", (spec, job_id))
        if facts is not None:
            self.write("UPDATE jobs SET facts = ? WHERE job_id = ?", (facts, job_id))

    def jobs(self, job_id: str | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """(id, spec, facts) in order of submission; of one, if it is named."""
        found = "SELECT job_id, spec, facts FROM jobs WHERE ? IS NULL OR job_id = ? ORDER BY number"
        rows = self._db.execute(found, (job_id, job_id))
        return [(job_id, spec, json.loads(facts)) for job_id, spec, facts in rows]

    # ------------------------------------------------------------------ history

    def add_history(self, rows: Iterable[tuple[float, str, str, str, str, str, str]]) -> None:
        """(at_s, at, kind, job, node, text, facts as JSON)."""
        added = "INSERT INTO history (at_s, at, kind, job_id, node_id, text, facts) VALUES (?, ?, ?, ?, ?, ?, ?)"
        with self.transaction():
            self._db.executemany(added, rows)

    def history(self, job_id: str | None, after: int, limit: int, *, newest: bool = False) -> Sequence[StoredRow]:
        """Rows with `seq` above `after`, oldest first; of more than `limit`, the first or the `newest`."""
        where, values = ("AND job_id = ?", (after, job_id, limit)) if job_id is not None else ("", (after, limit))
        order = "DESC" if newest else "ASC"
        found = f"SELECT * FROM history WHERE seq > ? {where} ORDER BY seq {order} LIMIT ?"  # noqa: S608 - our own texts
        rows = self._db.execute(found, values).fetchall()
        return [
            StoredRow(
                seq=seq, at_s=at_s, at=at, kind=kind, job_id=job, node_id=node, text=text, facts=json.loads(facts)
            )
            for seq, at_s, at, kind, job, node, text, facts in (reversed(rows) if newest else rows)
        ]

    # ------------------------------------------------------------------ what is cut

    def cut_until(self, table: str) -> int:
        """The number of the last event, or row of history, that is not here any more: see archive.py. 0 = all are."""
        return int(self.get(f"{table}_cut") or 0)

    def cut(self, table: str, until: int) -> None:
        """These are kept elsewhere. Of events, a snapshot that follows them stays here, and a later event."""
        if table not in CUT_TABLES:
            raise AssertionError(table)
        with self.transaction():
            self._db.execute(f"DELETE FROM {table} WHERE seq <= ?", (until,))  # noqa: S608 - one of our own names
            self.put(f"{table}_cut", str(until))


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file this is; None where there is none (a store in memory)."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def next_step(error: Exception) -> str:
    """The next step after a store that does not work."""
    said = str(error)
    if "locked" in said or "busy" in said:
        return "another program has the file open for writing: end it, then 'sublet up'"
    if "full" in said or "disk I/O" in said or "No space" in said:
        return "make room or repair the disk, then 'sublet up': what was done is in the log"
    if "readonly" in said or "read-only" in said.lower() or "unable to open" in said or "Permission" in said:
        return "let its owner write the file and its directory, then 'sublet up': what was done is in the log"
    return "put a backup in its place and 'sublet up', which finds by its tags what was rented since; or 'sublet gc'"
