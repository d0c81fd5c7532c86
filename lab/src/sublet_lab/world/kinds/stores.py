"""Faults of the file of the store while it is not open: it is older, damaged in part, or half foreign.

All of them end the controller, change the file, and let the next one begin on what is there.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from typing import Any

from sublet_lab.world import backups
from sublet_lab.world.stage import Kind, Stage
from sublet_lab.world.written import shelved

WAITS_S = (30.0, 120.0)  # until something was rented
LOOK_S = 1.0
OLDER = 0.5  # of these copies
FOREIGN_S = (2.0, 15.0)  # least and most that a job stays what no rule allows
DAMAGES = ("", "{", "[1]", '{"kernel":{}}', '{"kernel":{"version":0},"bill":{},"timers":{}}')
NEWER: tuple[dict[str, Any], ...] = ({"accelerators": ["Z9000"]}, {"max_workers": 10**9}, {"argv": 7})
STORE, ALL_FOREIGN = "the store", 0.3  # of these faults
DIES = 0.5  # of the controllers that are about to add what an older store lacks
NEWER_STORES = (
    ("schema", "99"),
    ("schema", "new"),
    ("schema", "0"),
    ("program", '{"sublet": "9.0", "journal": 99, "kernel": 99}'),
)
FOREIGN_SPECS = ("{", "[]", '{"name":"x"}')  # beside what a newer program may have taken: other GPUs, other words


def _older_backup(stage: Stage, rng: random.Random) -> bool:
    """A copy is kept, and put in place of the store when something was rented that it does not know.

    Half of them wait until a group has trained, too, that it knows nothing of: groups are numbered by the log, and must
    not be numbered again as they were. The others know all orders.
    """
    until_s, is_older = stage.world.now_s + rng.choice(WAITS_S), rng.random() < OLDER
    copy, backup = stage.disk.copy(), backups.begin(stage)

    def renew() -> None:
        nonlocal copy, backup
        copy.close()
        copy, backup = stage.disk.copy(), backups.begin(stage)

    def look() -> None:
        process = stage.controllers.process
        if stage.calm or stage.world.now_s > until_s:
            copy.close()
            return
        usable = process is not None and stage.controllers.ready and backups.can_be_put_back(stage, backup)
        if process is None or not usable or not (is_older or backups.knows_all_orders(stage, backup)):
            renew()
        elif backups.has_strangers(stage, backup) and (not is_older or backups.was_outdone(stage, backup)):
            stage.controllers.crash(process)
            if stage.disk.put_back(copy):
                stage.effects["older_backup"] += 1
                backups.put_back(stage, backup)
            copy.close()
            return
        stage.world.after(LOOK_S, look)

    look()
    return False


def _damaged_snapshot(stage: Stage, rng: random.Random) -> bool | None:
    """The newest snapshot cannot be read any more, or none of them: what follows from the whole log is known still.

    The effect is that the next controller finds it so.
    """
    process = stage.controllers.process
    if process is None or process.dead:
        return False
    stage.controllers.crash(process)
    which = rng.choice(["= (SELECT MAX(seq) FROM snapshots)", "> 0"])
    damage, struck = rng.choice(DAMAGES), stage.later("damaged_snapshot")
    if not _changed(stage, f"UPDATE snapshots SET state = ? WHERE seq {which}", (damage,)):  # noqa: S608 - our own words
        return False

    def look(_: float) -> None:
        if stage.disk.has_table("snapshots") and damage in {
            s for (s,) in stage.disk.rows("SELECT state FROM snapshots")
        }:
            struck()

    stage.controllers.started.append(look)
    return None


def _foreign_job(stage: Stage, rng: random.Random) -> bool:
    """A job of a program that knows more than this one, which is installed again soon. It counts once it was read."""
    process = stage.controllers.process
    rows = stage.disk.rows("SELECT job_id, spec FROM jobs ORDER BY number")
    if process is None or process.dead or not rows:
        return False
    job_id, spec = rng.choice(rows)
    if job_id in stage.foreign:
        return False
    stage.controllers.crash(process)
    newer = json.dumps(json.loads(spec) | rng.choice(NEWER))
    foreign, before = rng.choice([newer, newer, *FOREIGN_SPECS]), stage.controllers.lives
    if STORE not in stage.foreign and rng.random() < ALL_FOREIGN:
        _write_as_newer(stage, "foreign_job", rng, rng.choice(NEWER_STORES))
        return False

    def install_again() -> None:
        holder = stage.controllers.process
        if stage.controllers.lives == before or not stage.controllers.ready or holder is None:
            stage.world.after(1.0, install_again)
            return
        stage.controllers.crash(holder)
        try:
            stage.disk.edit("UPDATE jobs SET spec = ? WHERE job_id = ? AND spec = ?", (spec, job_id, foreign))
        except sqlite3.OperationalError:
            stage.world.after(1.0, install_again)  # there is no room for it yet
        else:
            stage.foreign.discard(job_id)
            stage.effects["foreign_job"] += 1

    if not _changed(stage, "UPDATE jobs SET spec = ? WHERE job_id = ?", (foreign, job_id)):
        return False
    stage.foreign.add(job_id)
    stage.world.after(rng.uniform(*FOREIGN_S), install_again)
    return False


def _foreign_store(stage: Stage, rng: random.Random) -> bool:
    """A newer program has written all of it, or nothing says which did. The effect is that it was refused."""
    if not _left_alone(stage):
        return False
    _write_as_newer(stage, "foreign_store", rng, rng.choice((*NEWER_STORES, ("schema", None))))
    return False


def _write_as_newer(stage: Stage, kind: str, rng: random.Random, written: tuple[str, str | None]) -> None:
    """No controller of this program begins until the other is installed again; it counts then."""
    key, text = written
    was, before = stage.disk.fact(key), stage.controllers.lives
    sql = "DELETE FROM meta WHERE key = ?" if text is None else "UPDATE meta SET value = ? WHERE key = ?"
    if not _changed(stage, sql, (key,) if text is None else (text, key)):
        return
    stage.foreign.add(STORE)

    def install_again() -> None:
        try:
            if stage.controllers.lives > before:
                stage.disk.edit("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, was))
                stage.foreign.discard(STORE)
                stage.effects[kind] += 1
                return
        except sqlite3.OperationalError:
            pass  # there is no room for it yet
        stage.world.after(1.0, install_again)

    stage.world.after(rng.uniform(*FOREIGN_S), install_again)


def _left_alone(stage: Stage) -> bool:
    """The controller is gone, and what is in the file is this program's own; False if it was not there."""
    process = stage.controllers.process
    if process is None or process.dead or STORE in stage.foreign:
        return False
    stage.controllers.crash(process)
    return True


def _older_schema(stage: Stage, rng: random.Random) -> bool | None:
    """The tables are those of the first version, which had no snapshots and no shelf: the next controller adds them.

    In half of these lives it is gone in the middle of that. Only where nothing was cut or shelved: that version knew of
    neither. The effect is that there is such a table again.
    """
    if stage.disk.fact("events_cut") or stage.disk.fact("history_cut") or shelved(stage.disk):
        return False
    if not _left_alone(stage):
        return False
    try:
        stage.disk.edit_all(
            "DROP TABLE snapshots", "DROP TABLE shelf", "UPDATE meta SET value = '1' WHERE key = 'schema'"
        )
    except sqlite3.OperationalError:
        return False
    if rng.random() < DIES:
        stage.disk.crash_in(0, before=rng.random() < 0.5)
    struck = stage.later("older_schema")

    def look() -> None:
        if stage.disk.has_table("shelf_by_sums"):
            struck()
        elif not stage.ending:
            stage.world.after(LOOK_S, look)

    look()
    return None


def _damaged_store(stage: Stage, rng: random.Random) -> bool | None:
    """A page of the file cannot be made sense of: no controller begins until the disk is repaired."""
    if not _left_alone(stage):
        return False
    stage.disk.damaged = stage.later("damaged_store")

    def repair() -> None:
        stage.disk.damaged = None

    foreign_until_missed(stage, STORE, rng.uniform(*FOREIGN_S), repair)
    return None


def foreign_until_missed(stage: Stage, what: str, for_s: float, put_back: Callable[[], None]) -> None:
    """No controller begins without it, for so long and until one has tried."""
    stage.foreign.add(what)
    before = stage.controllers.lives

    def look() -> None:
        if stage.controllers.lives == before:
            stage.world.after(1.0, look)
            return
        put_back()
        stage.foreign.discard(what)

    stage.world.after(for_s, look)


def _changed(stage: Stage, sql: str, values: tuple[str, ...]) -> bool:
    """By an editor; False where there was nothing to change, or no room."""
    try:
        return stage.disk.edit(sql, values) > 0
    except sqlite3.OperationalError:
        return False


STORE_KINDS: dict[str, Kind] = {
    "older_backup": _older_backup,
    "damaged_snapshot": _damaged_snapshot,
    "foreign_job": _foreign_job,
    "foreign_store": _foreign_store,
    "older_schema": _older_schema,
    "damaged_store": _damaged_store,
}
