"""Faults of a log that is cut: its archive is full or rots, the log is lost beside it; and their readers.

Drawn in lives whose store keeps next to nothing, six times as often as other kinds: elsewhere there is no archive.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from sublet.errors import BadInput, KernelError, SubletError
from sublet.kernel.journal import replay
from sublet.kernel.kernel import KERNEL_VERSION
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.runtime.archive import Kept, WholeLog
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.store import MetaKey, Store
from sublet_lab.world.heap import Crash, Process
from sublet_lab.world.kinds.stores import foreign_until_missed
from sublet_lab.world.network import CONTROLLER
from sublet_lab.world.stage import Kind, Stage
from sublet_lab.world.written import archives, shelved

LOG = "the log"
LOOK_S = 2.0
AWAY_S = (2.0, 15.0)  # least and most that a file is damaged, or away
FULL_S = (5.0, 60.0)
TORN = 0.3  # of the files whose writer dies
NEEDED = 0.5  # of the damaged files: no snapshot can be read either, so that the next start needs them


def _full_archive(stage: Stage, rng: random.Random) -> None:
    """There is no room beside the store: nothing is cut from it meanwhile. The effect is a file that is not written."""
    files = stage.controllers.files
    files.full, files.refused = True, stage.later("full_archive")
    stage.world.after(rng.uniform(*FULL_S), files.make_room)


def _crash_archive(stage: Stage, rng: random.Random) -> None:
    """The writer of the next file beside the store is gone right after; of some of these half is left.

    Mostly that is one of the archive, whose part of the log was not cut yet; a register of checkpoints may be, too.
    """
    files, struck, is_torn = stage.controllers.files, stage.later("crash_archive"), rng.random() < TORN

    def die(path: Path) -> None:
        process, files.written = stage.controllers.process, lambda _: None
        if stage.calm or process is None or process.dead:
            return
        if is_torn:
            files.contents[path] = files.contents[path][: len(files.contents[path]) // 2]
        struck()
        stage.controllers.crash(process)
        raise Crash

    files.written = die


def _once(stage: Stage, strike: Callable[[], bool]) -> None:
    """Until it is done, or the life is over: archives and shelves are filled late in it."""

    def look() -> None:
        if not stage.ending and not strike():
            stage.world.after(LOOK_S, look)

    look()


def _rotten_archive(stage: Stage, rng: random.Random) -> None:
    """A file of the archive is damaged or away for a while. The effect is a read of it."""
    _once(stage, lambda: stage.calm or _damage(stage, rng))


def _damage(stage: Stage, rng: random.Random) -> bool:
    files, process = stage.controllers.files, stage.controllers.process
    cut = int((stage.disk.fact(MetaKey.EVENTS_CUT)) or 0)
    paths = [path for path in archives(files.contents, Kept.EVENTS) if _first_of(path) <= cut]
    if not paths or LOG in stage.foreign or process is None or process.dead:
        return False
    path = rng.choice(paths)
    stage.victim, was = path.name, files.contents[path]
    damaged = rng.choice([None, b"", was[: len(was) // 2], b"\x00" + was[1:]])
    if damaged is None:
        del files.contents[path]
    else:
        files.contents[path] = damaged
    files.watched[path] = stage.later("rotten_archive")
    stage.foreign.add(LOG)
    is_needed, before = rng.random() < NEEDED, stage.controllers.lives
    if is_needed:
        stage.controllers.crash(process)
        with suppress(sqlite3.OperationalError):  # there may be no room for it
            stage.disk.edit("UPDATE snapshots SET state = '{'", ())

    mended = False

    def repair() -> None:
        nonlocal mended
        if mended:  # the log may be away for another reason by now
            return
        if is_needed and stage.controllers.lives == before and not stage.calm:  # it was not missed yet
            stage.world.after(1.0, repair)
            return
        if files.contents.get(path) == damaged:
            files.contents[path] = was
            files.watched.pop(path, None)
        stage.foreign.discard(LOG)
        mended = True

    stage.repairs.append(repair)
    stage.world.after(rng.uniform(*AWAY_S), repair)
    return True


def _first_of(path: Path) -> int:
    return int(path.name.removeprefix(f"{Kept.EVENTS}-").partition(".")[0])


def _lost_log(stage: Stage, rng: random.Random) -> None:
    """The log is moved away and its archive stays: no controller begins anew until it is put back.

    The effect is a search for it.
    """
    _once(stage, lambda: stage.calm or _move_away(stage, rng))


def _move_away(stage: Stage, rng: random.Random) -> bool:
    process = stage.controllers.process
    if process is None or process.dead or LOG in stage.foreign:
        return False
    if not archives(stage.controllers.files.contents, Kept.EVENTS):
        return False
    stage.controllers.crash(process)
    stage.disk.missed = stage.later("lost_log")

    def put_back() -> None:
        stage.disk.missed = None

    foreign_until_missed(stage, LOG, rng.uniform(*AWAY_S), put_back)
    return True


# ---------------------------------------------------------------------- readers


def _replay(stage: Stage, rng: random.Random) -> None:
    """The whole log is replayed, as `sublet replay` does, once something was cut from it.

    A: it says what it said then; from its first line on, from where this kernel began, and from where it was cut.
    """
    del rng
    struck = stage.later("replay")

    def strike() -> bool:
        if not stage.disk.fact(MetaKey.EVENTS_CUT) or stage.disk.missed is not None:
            return False
        visitor = Process(stage.world, "visitor", CONTROLLER)
        try:
            store = Store(Path("log.sqlite"), connect=lambda _: stage.disk.connect(visitor))
        except (Crash, BadInput):  # it is a newer program's, or damaged, and says so
            visitor.kill()
            return False
        try:
            _relive(store, WholeLog(store, files=stage.controllers.files))
        except (KernelError, BadInput) as error:
            stage.truth.complaints.append(("A", f"the log says another thing when it is lived again: {error}"))
        store.close()
        visitor.kill()
        struck()
        return True

    _once(stage, strike)


def _relive(store: Store, log: WholeLog) -> None:
    if log.is_whole:
        replay(chain([store.get(MetaKey.HEADER) or ""], log.lines()))
    begun = store.first_snapshot(KERNEL_VERSION)
    for seq, state in [] if begun is None else [begun, *store.snapshots()]:
        if seq >= log.first - 1 and (kernel := _readable(state)) is not None:
            replay(log.lines(after=seq), kernel=kernel_from_snapshot(kernel))


def _readable(state: str) -> dict[str, Any] | None:
    """None of a damaged one."""
    try:
        kernel = json.loads(state)["kernel"]
        return kernel if kernel["kernel"] == KERNEL_VERSION else None
    except (ValueError, KeyError, TypeError):
        return None


def _user_returns(stage: Stage, rng: random.Random) -> None:
    """A user asks for an archived job, over HTTP where users come that way. The effect is an answer.

    T: it has ended as it had.
    """
    struck, verb = stage.later("user_returns"), rng.choice(["", "", "/explain"])

    def heard(job_id: str, ended: str, status: int, said: dict[str, Any]) -> None:
        if status == 200:
            struck()
            if not verb and said["phase"] != ended:
                stage.truth.complaints.append(("T", f"{job_id} is {said['phase']}, and {ended} on the shelf"))

    def strike() -> bool:
        found, controllers = shelved(stage.disk), stage.controllers
        if not found or not controllers.ready:
            return False
        job_id = rng.choice(sorted(found))
        ended = str(found[job_id]["outcome"])
        if controllers.border is not None:
            controllers.border.get(f"/v1/jobs/{job_id}{verb}", lambda *said: heard(job_id, ended, *said))
            return True

        async def ask(api: ControllerApi) -> None:
            try:
                said = await (api.explain(job_id) if verb else api.job(job_id))
            except SubletError:
                return
            heard(job_id, ended, 200, dict(said))

        return stage.users.ask(ask)

    _once(stage, strike)


ARCHIVE_KINDS: dict[str, Kind] = {
    "full_archive": _full_archive,
    "crash_archive": _crash_archive,
    "rotten_archive": _rotten_archive,
    "lost_log": _lost_log,
    "replay": _replay,
    "user_returns": _user_returns,
}
