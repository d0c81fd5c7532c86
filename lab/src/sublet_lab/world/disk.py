"""The disk under the store: SQLite in memory that outlives its connections. A crash may come at any commit of it."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

from sublet.runtime.store import WHOSE
from sublet_lab.world.heap import Crash, Process

BESIDE_META = ("INSERT", "UPDATE", "DELETE", "COMMIT")  # such a statement changes what it names, and nothing else
NO_LIMIT = 1_073_741_823  # pages: SQLite's own
_ids = itertools.count()


class Disk:
    """`on_crash` ends the writer, before or after the k-th commit from when a crash was asked for."""

    def __init__(self) -> None:
        self.on_crash: Callable[[Process], None] = lambda process: process.kill()
        self._uri = f"file:world{os.getpid()}_{next(_ids)}?mode=memory&cache=shared"
        self._anchor = sqlite3.connect(self._uri, uri=True, isolation_level=None)
        self._crash_in: tuple[int, bool] | None = None  # (commits from now, before it)
        self.changes = 0  # statements of anybody that may have changed whose it is
        self.commits = 0
        self.commits_of: Counter[int] = Counter()  # by process
        self.was_full = False  # ever
        self.struck_by_crash: Callable[[], None] = lambda: None
        self.struck_by_fill: Callable[[], None] = lambda: None
        self.missed: Callable[[], None] | None = None  # told when the file is looked for: it was moved away
        self.damaged: Callable[[], None] | None = None  # told when a check of the file fails

    def connect(self, process: Process) -> DiskConnection:
        """The store of a process, closed by its machine when it is gone: what it had not committed never was."""
        connection = sqlite3.connect(
            self._uri, uri=True, isolation_level=None, check_same_thread=False, factory=DiskConnection
        )
        connection.attach(self, process)
        process.at_end(connection.close)
        return connection

    def crash_in(self, commits: int, *, before: bool, struck: Callable[[], None] = lambda: None) -> None:
        """The writer of that commit is gone, before or after it."""
        self._crash_in, self.struck_by_crash = (commits, before), struck

    def fill(self, struck: Callable[[], None] = lambda: None) -> None:
        """Not one more page can be written: SQLite says so itself."""
        self.was_full, self.struck_by_fill = True, struck
        (pages,) = self._anchor.execute("PRAGMA page_count").fetchone()
        self._anchor.execute(f"PRAGMA max_page_count = {max(1, pages)}")

    def calm(self) -> None:
        """There is room, and no crash is due."""
        self._crash_in = None
        self.make_room()

    def make_room(self) -> None:
        """A file was deleted."""
        self._anchor.execute(f"PRAGMA max_page_count = {NO_LIMIT}")

    def commit(self, process: Process, run: Callable[[], Any]) -> Any:
        """One commit of a process, or its end."""
        if self._crash_in is None:
            result = run()
            self.commits, self.commits_of[process.pid] = self.commits + 1, self.commits_of[process.pid] + 1
            return result
        left, before = self._crash_in
        self._crash_in = (left - 1, before) if left > 0 else None
        if left > 0 or not before:
            result = run()
            self.commits, self.commits_of[process.pid] = self.commits + 1, self.commits_of[process.pid] + 1
            if left > 0:
                return result
        self.struck_by_crash()
        self.on_crash(process)
        raise Crash

    def refused(self, error: sqlite3.OperationalError) -> None:
        """SQLite could not do what it was asked for."""
        if "full" in str(error):
            self.struck_by_fill()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """For a look from outside."""
        return self._anchor.execute(query).fetchall()

    def has_table(self, name: str) -> bool:
        """Stores of before lack some."""
        return bool(self._anchor.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall())

    def fact(self, key: str) -> str | None:
        """A fact by name, for the same."""
        rows = self._anchor.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchall()
        return str(rows[0][0]) if rows else None

    def edit(self, sql: str, values: tuple[Any, ...]) -> int:
        """For a change of the file behind its owner's back; how many rows were."""
        self.changes += 1
        return self._anchor.execute(sql, values).rowcount

    def edit_all(self, *statements: str) -> None:
        """All of them or none: by a program that is not of this world."""
        self.changes += 1
        with self._anchor:
            self._anchor.execute("BEGIN IMMEDIATE")
            for sql in statements:
                self._anchor.execute(sql)

    def copy(self) -> sqlite3.Connection:
        """A backup."""
        copy = sqlite3.connect(":memory:", isolation_level=None)
        self._anchor.backup(copy)
        return copy

    def put_back(self, copy: sqlite3.Connection) -> bool:
        """All is as it was then; False if the file is open, or there is no room."""
        self.changes += 1
        try:
            copy.backup(self._anchor)
        except sqlite3.OperationalError:
            return False
        return True

    def close(self) -> None:
        """The end of the world."""
        self._anchor.close()


class DiskConnection(sqlite3.Connection):
    """The connection of one process."""

    _disk: Disk
    _process: Process
    _whose: tuple[int, list[tuple[Any, ...]]] = (-1, [])  # the changes before it was asked, and the answer

    def attach(self, disk: Disk, process: Process) -> None:
        """Before anything is asked of it."""
        self._disk, self._process = disk, process

    @property
    def in_transaction(self) -> bool:
        return not self._process.dead and super().in_transaction

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql is WHOSE and self._whose[0] == self._disk.changes and not self._process.dead:
            return cast(sqlite3.Cursor, iter(self._whose[1]))  # rows to go through are all that is wanted of it
        try:
            return self._execute(sql, parameters)
        except sqlite3.OperationalError as error:
            self._disk.refused(error)
            raise

    def _execute(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        self._live()
        if sql is WHOSE:
            return self._ask_whose()
        if sql.startswith("SELECT"):
            return super().execute(sql, parameters)
        if sql.startswith("BEGIN"):
            return super().execute(sql)
        if sql.startswith(("PRAGMA journal_mode", "PRAGMA synchronous")):  # what a database in memory does not have
            return super().execute("SELECT 1")
        if sql.startswith("PRAGMA quick_check") and self._disk.damaged is not None:
            self._disk.damaged()
            return super().execute("SELECT 'row 7 missing from index history_of_job'")
        if "meta" in sql or not sql.startswith(BESIDE_META):
            self._disk.changes += 1
        commits = sql.startswith("COMMIT") or not (super().in_transaction or sql.startswith(("PRAGMA", "ROLLBACK")))
        if not commits:
            return super().execute(sql, parameters)
        found: sqlite3.Cursor = self._disk.commit(
            self._process, lambda: sqlite3.Connection.execute(self, sql, parameters)
        )
        return found

    def _ask_whose(self) -> sqlite3.Cursor:
        """Asked before every action: the same rows as long as nothing has changed there."""
        rows = super().execute(WHOSE).fetchall()
        self._whose = (self._disk.changes, rows)
        return cast(sqlite3.Cursor, iter(rows))

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        self._live()
        rows = list(parameters)
        self._disk.changes += "meta" in sql
        try:
            if super().in_transaction:
                return super().executemany(sql, rows)
            found: sqlite3.Cursor = self._disk.commit(
                self._process, lambda: sqlite3.Connection.executemany(self, sql, rows)
            )
        except sqlite3.OperationalError as error:
            self._disk.refused(error)
            raise
        return found

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Statement by statement: a crash may come between two of them."""
        self._live()
        cursor = super().execute("SELECT 1")
        statement = ""
        for piece in sql_script.split(";"):
            statement += piece + ";"
            if sqlite3.complete_statement(statement) and statement.strip(" \n;"):
                cursor = self.execute(statement.strip())
                statement = ""
        return cursor

    def _live(self) -> None:
        if self._process.dead:
            raise Crash
