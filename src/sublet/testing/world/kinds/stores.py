"""What can go wrong with the file of the store while nobody has it open: it is older, damaged in part, or half foreign.

All of them end the controller, change the file, and let the next one begin on what is there.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from typing import Any

from sublet.testing.world import backups
from sublet.testing.world.stage import Stage

__all__ = ["STORE_KINDS"]

WAITS_S = (30.0, 120.0)  # until something was rented
LOOK_S = 1.0
OLDER = 0.5  # of these copies
FOREIGN_S = (2.0, 15.0)  # least and most that a job stays what no rule allows
DAMAGES = ("", "{", "[1]", '{"kernel":{}}', '{"kernel":{"version":0},"bill":{},"timers":{}}')
NEWER: tuple[dict[str, Any], ...] = ({"accelerators": ["Z9000"]}, {"max_workers": 10**9}, {"argv": 7})
STORE, ALL_FOREIGN = "the store", 0.3  # of these faults
NEWER_STORES = (
    ("schema", "99"),
    ("schema", "new"),
    ("schema", "0"),
    ("program", '{"sublet": "9.0", "journal": 99, "kernel": 99}'),
)
FOREIGN_SPECS = ("{", "[]", '{"name":"x"}')  # beside what a newer program may have taken: other GPUs, other words


def _older_backup(stage: Stage, dice: random.Random) -> bool:
    """A copy is kept, and put in place of the store when something was rented that it does not know.

    Half of them wait until a group has trained, too, that it knows nothing of: groups are numbered by the log, and must
    not be numbered again as they were. The others know all orders.
    """
    until_s, is_older = stage.world.now_s + dice.choice(WAITS_S), dice.random() < OLDER
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


def _damaged_snapshot(stage: Stage, dice: random.Random) -> bool:
    """The newest snapshot cannot be read any more, or none of them: what follows from the whole log is known still."""
    process = stage.controllers.process
    if process is None or process.dead:
        return False
    stage.controllers.crash(process)
    which = dice.choice(["= (SELECT MAX(seq) FROM snapshots)", "> 0"])
    return _changed(stage, f"UPDATE snapshots SET state = ? WHERE seq {which}", (dice.choice(DAMAGES),))  # noqa: S608 - our own words


def _foreign_job(stage: Stage, dice: random.Random) -> bool:
    """A job of a program that knows more than this one, which is installed again soon. It counts once it was read."""
    process = stage.controllers.process
    rows = stage.disk.rows("SELECT job_id, spec FROM jobs ORDER BY number")
    if process is None or process.dead or not rows:
        return False
    job_id, spec = dice.choice(rows)
    if job_id in stage.foreign:
        return False
    stage.controllers.crash(process)
    newer = json.dumps(json.loads(spec) | dice.choice(NEWER))
    foreign, before = dice.choice([newer, newer, *FOREIGN_SPECS]), stage.controllers.lives
    if STORE not in stage.foreign and dice.random() < ALL_FOREIGN:
        return _foreign_store(stage, dice)

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
    stage.world.after(dice.uniform(*FOREIGN_S), install_again)
    return False


def _foreign_store(stage: Stage, dice: random.Random) -> bool:
    """A newer program has written all of it: no controller of this one begins until that is installed again."""
    key, text = dice.choice(NEWER_STORES)
    ((was,),) = stage.disk.rows(f"SELECT value FROM meta WHERE key = '{key}'")  # noqa: S608 - our own names
    before = stage.controllers.lives
    if not _changed(stage, "UPDATE meta SET value = ? WHERE key = ?", (text, key)):
        return False
    stage.foreign.add(STORE)

    def install_again() -> None:
        try:
            if stage.controllers.lives > before:
                stage.disk.edit("UPDATE meta SET value = ? WHERE key = ?", (was, key))
                stage.foreign.discard(STORE)
                stage.effects["foreign_job"] += 1
                return
        except sqlite3.OperationalError:
            pass  # there is no room for it yet
        stage.world.after(1.0, install_again)

    stage.world.after(dice.uniform(*FOREIGN_S), install_again)
    return False


def _changed(stage: Stage, sql: str, values: tuple[str, ...]) -> bool:
    """By somebody with an editor; False where there was nothing to change, or no room."""
    try:
        return stage.disk.edit(sql, values) > 0
    except sqlite3.OperationalError:
        return False


STORE_KINDS: dict[str, Callable[[Stage, random.Random], bool]] = {
    "older_backup": _older_backup,
    "damaged_snapshot": _damaged_snapshot,
    "foreign_job": _foreign_job,
}
