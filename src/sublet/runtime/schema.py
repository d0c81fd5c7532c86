"""The tables of a store and the versions of what is in them: made whole, read as they are, never guessed at.

    a new file         all tables and their version, in one transaction
    an older version   is read as it is; the first write of the next controller makes it this one
    a newer version    is refused before anything is written: its program knows what this one does not

Three things have versions: the tables (`SCHEMA_VERSION`), the lines of the log and what the kernel makes of them. A
controller leaves all three, and the name of its program, for the next to see.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from sublet import __version__
from sublet.errors import BadInput
from sublet.kernel.journal import JOURNAL_VERSION
from sublet.kernel.kernel import KERNEL_VERSION

__all__ = ["SCHEMA_VERSION", "MetaKey", "give_room_back", "prepare_tables", "program_facts", "refuse_damage"]

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
