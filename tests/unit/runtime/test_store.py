"""The store under kill -9, full disks and files that are none."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from sublet.errors import BadInput
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.runtime.store import Store

WRITER = """
import sys
from pathlib import Path
from sublet.runtime.store import Store
store = Store(Path(sys.argv[1]))
number = len(list(store.lines()))
while True:
    with store.transaction():
        for _ in range(3):
            store.append(float(number), str(number))
            number += 1
        store.put("last", str(number))
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_what_was_committed_survives_kill_and_nothing_half_done_does(tmp_path, seed):
    path, rng = tmp_path / "log.sqlite", random.Random(seed)
    promised = 0
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
        first = writer.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.1))
        writer.send_signal(signal.SIGKILL)
        rest = [first, *writer.stdout.read().splitlines()]
        writer.wait()
        writer.stdout.close()
        promised = max(promised, *(int(line) for line in rest if line.strip()))
        store = Store(path)
        lines = list(store.lines())
        assert lines == [str(number) for number in range(len(lines))]
        assert len(lines) >= promised, "a commit was promised and is gone"
        assert len(lines) % 3 == 0, "half a transaction is there"
        assert store.get("last") == str(len(lines))
        store.close()


# ---------------------------------------------------------------------- versions


def newer(path, facts):
    store = Store(path)
    for key, value in facts.items():
        store.put(key, value)
    store._db.execute("DROP TABLE snapshots")  # a program that touched it first would make it anew
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"schema": "99"}, r"by a newer Sublet, store version 99 \(this program: 2\)"),
        ({"program": '{"sublet": "9.8", "kernel": 77}'}, r"by Sublet 9\.8, kernel version 77 \(this program: \d+\)"),
        ({"program": '{"sublet": "9.8", "journal": 5}'}, r"by Sublet 9\.8, journal version 5 \(this program: 1\)"),
    ],
    ids=["its tables", "its decisions", "its lines"],
)
def test_a_store_of_a_newer_program_is_refused_before_anything_is_touched(tmp_path, facts, why):
    before = newer(tmp_path / "log.sqlite", facts)
    with pytest.raises(BadInput, match=f"{why}.* nothing was changed\n  next: install that version again"):
        Store(tmp_path / "log.sqlite")
    assert (tmp_path / "log.sqlite").read_bytes() == before


def test_a_store_of_an_older_program_is_read_as_it_is_and_becomes_ours_when_a_controller_claims_it(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.put("schema", "1")
    store._db.execute("DELETE FROM meta WHERE key = 'program'")
    store.close()
    visitor = Store(tmp_path / "log.sqlite")
    assert visitor.get("schema") == "1"  # who only looks leaves it to the program that wrote it
    visitor.claim("a controller", after=0)
    assert (visitor.get("schema"), json.loads(visitor.get("program"))["kernel"]) == ("2", KERNEL_VERSION)
    visitor.close()


def test_tables_that_nothing_says_the_version_of_are_a_new_store_only_if_they_are_empty(tmp_path):
    """Programs before version 2 wrote their version after the tables, and could be ended in between."""
    path = tmp_path / "log.sqlite"
    store = Store(path)
    store._db.execute("DELETE FROM meta")
    store.close()
    store = Store(path)
    assert store.get("schema") == "2"
    store.append(0.0, "{}")
    store._db.execute("DELETE FROM meta")
    store.close()
    with pytest.raises(BadInput, match="nothing says of which version"):
        Store(path)


class Dying:
    """A connection whose program ends at its n-th statement that changes something."""

    def __init__(self, path, at):
        self.db, self.left = sqlite3.connect(path, isolation_level=None), at

    def execute(self, sql, values=()):
        if not sql.startswith(("SELECT", "PRAGMA")):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self.db.execute(sql, values)

    @property
    def in_transaction(self):
        return False  # nobody is left to roll anything back

    def close(self):
        self.db.close()


def test_a_program_that_ends_at_any_statement_of_its_first_start_leaves_a_store_that_can_be_begun(tmp_path):
    points = 0
    while True:
        path = tmp_path / f"{points}.sqlite"
        dying = Dying(path, points)
        try:
            Store(path, connect=lambda _, dying=dying: dying).close()
            break
        except KeyboardInterrupt:
            dying.close()
        store = Store(path)
        store.claim("the next", after=0)
        assert store.get("schema") == "2"
        store.close()
        points += 1
    assert points >= 9  # begin, six tables and an index, the version, commit


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough to be looked at" * 40])
def test_a_file_that_is_no_store_is_named_in_the_error(tmp_path, damage):
    path = tmp_path / "log.sqlite"
    path.write_bytes(damage or b"\x00" * 100)
    with pytest.raises(BadInput, match=r"log\.sqlite"):
        Store(path).jobs()
    assert path.read_bytes().startswith(damage[:20])


def test_damage_inside_a_store_is_an_error_and_not_a_shorter_log(tmp_path):
    path = tmp_path / "log.sqlite"
    store = Store(path)
    with store.transaction():
        for number in range(2000):
            store.append(float(number), "x" * 50)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for place in range(8192, size, 4096):
            file.seek(place)
            file.write(os.urandom(64))
    with pytest.raises(BadInput, match="cannot be used as a store"):
        Store(path)


def test_a_transaction_that_fails_leaves_nothing(tmp_path):
    store = Store(tmp_path / "log.sqlite")

    def fails():
        with store.transaction():
            store.append(0.0, "a")
            with store.transaction():
                store.append(1.0, "b")
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list(store.lines()) == []
    store.append(2.0, "c")
    assert (list(store.lines()), store.last_s()) == (["c"], 2.0)


def test_the_same_key_is_the_same_job(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.add_job("a-1", "k", "{}")
    store.add_job("a-2", "", "{}")
    store.add_job("a-3", "", "{}")  # no key is no key
    assert store.job_by_key("k") == ("a-1", "{}")
    with pytest.raises(sqlite3.IntegrityError):
        store.add_job("a-4", "k", "{}")
    assert [job_id for job_id, _, _ in store.jobs()] == ["a-1", "a-2", "a-3"]


def test_a_file_that_was_cut_to_a_fraction_gives_its_room_back_at_the_next_claim(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    with store.transaction():
        for number in range(6_000):
            store.append(float(number), "x" * 4_000)
    store.cut("events", 5_990)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = store.path.stat().st_size
    store.claim("a controller", after=0)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store.path.stat().st_size < before / 50
    assert (len(list(store.lines())), store.last_seq()) == (10, 6_000)
    store.close()
