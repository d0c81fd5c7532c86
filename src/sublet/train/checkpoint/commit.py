"""A directory of checkpoints on one filesystem: who may commit, how, and what is thrown away.

<directory>/
  step-400/                    committed: the rename to this name is the commit point
  staging/<step>-<uuid>/       being written; locked by its writer, so a dead one's is known by being unlocked
  fence/<generation>           announced generations: an empty file each, so there is nothing in it to damage
  LOCK                         held for the moment of a commit
  damaged/step-400-<uuid>/     set aside when its owner had the job begin at step 0
  LATEST                       a hint for people; readers look at the manifests
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from sublet.errors import CheckpointFailed, DamagedCheckpoint, StaleWriter
from sublet.train.checkpoint.files import fsync_directory, mode_in, verify

__all__ = [
    "KnownGood",
    "announce",
    "announced",
    "collect",
    "commit",
    "commit_age_s",
    "committed_steps",
    "locked",
    "make_directory",
    "open_staging",
    "set_aside",
    "sweep",
]

STALE_S = 86_400.0  # a write that takes a day is dead
LOCK_WAIT_S = 30.0  # held for one rename and one fsync of a directory
LOCK_POLL_S = 0.01
STEP = re.compile(r"step-(0|[1-9]\d*)")


def committed_steps(directory: Path) -> list[int]:
    """Steps with a directory of theirs, highest first; whether they are whole is not known yet."""
    try:
        names = [path.name for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(match[1]) for name in names if (match := STEP.fullmatch(name))), reverse=True)


def commit_age_s(directory: Path) -> float:
    """Seconds since the highest step was written; infinite without any that can be seen."""
    with contextlib.suppress(OSError):
        for step in committed_steps(directory)[:1]:
            return max(0.0, time.time() - (directory / f"step-{step}").stat().st_mtime)
    return math.inf


def announced(directory: Path) -> int:
    """The highest generation that was announced; 0, which fences off nobody, if none was."""
    try:
        names = [path.name for path in (directory / "fence").iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)


def announce(directory: Path, generation: int) -> None:
    """From now on nobody of a lower generation commits. Lower announcements are removed after this one is on disk."""
    fence = directory / "fence"
    if announced(directory) < generation:
        make_directory(fence)
        mode = mode_in(fence, 0o644)
        os.close(os.open(fence / str(generation), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode))
        fsync_directory(fence)
        for path in list(fence.iterdir()):
            if path.name.isdecimal() and int(path.name) < generation:
                path.unlink(missing_ok=True)


def make_directory(directory: Path) -> None:
    """Make it and what is missing above it, so that it survives a power cut."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True, mode=mode_in(directory.parent, 0o777))
        fsync_directory(directory.parent)


@contextlib.contextmanager
def locked(directory: Path, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold LOCK; the kernel frees it if this process dies."""
    path = directory / "LOCK"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode_in(directory, 0o644))
    try:
        deadline_s = time.monotonic() + wait_s
        while not _try_lock(handle):
            if time.monotonic() > deadline_s:
                why = f"another process has held it for {wait_s:g} s"
                raise CheckpointFailed(path, why, hint=f"see who: fuser {path}")
            time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # explicit, because a forked child may have inherited the handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_staging(directory: Path, step: int) -> Iterator[Path]:
    """A new directory that is ours while we live; what is left of it at the end is removed."""
    make_directory(directory / "staging")
    path = directory / "staging" / f"{step}-{uuid.uuid4().hex}"
    with locked(directory):  # between the mkdir and the lock, a sweep would take it for a dead writer's
        path.mkdir(mode=mode_in(path.parent, 0o777))
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _try_lock(handle)
    try:
        yield path
    finally:
        os.close(handle)
        shutil.rmtree(path, ignore_errors=True)


def set_aside(directory: Path, steps: list[int]) -> Path:
    """Take committed steps out of the way of those to come; they stay, for people to look at. Where they are then."""
    place = directory / "damaged"
    make_directory(place)
    with locked(directory):
        for step in steps:
            with contextlib.suppress(FileNotFoundError):  # another reader was quicker
                (directory / f"step-{step}").rename(place / f"step-{step}-{uuid.uuid4().hex[:8]}")
        fsync_directory(directory)
    return place


def sweep(directory: Path, *, wait_s: float = LOCK_WAIT_S) -> None:
    """Remove what dead writers left in staging, and what is older than a day."""
    staging = directory / "staging"
    if not staging.exists():
        return
    with locked(directory, wait_s=wait_s):
        for path in list(staging.iterdir()):
            with contextlib.suppress(OSError):  # its writer removes it at this moment
                if time.time() - path.stat().st_mtime > STALE_S or not _is_locked(path):
                    shutil.rmtree(path, ignore_errors=True)


def commit(directory: Path, staging: Path, step: int, generation: int) -> None:
    """Give a complete staging directory its name, unless a higher generation was announced.

    If the step is there already and whole, that one stays: the same step of the same training. If it is damaged it
    makes room, and for a moment there is none of this step, as for a reader there was none before.
    """
    target = directory / f"step-{step}"
    damaged: int | None = None
    while True:
        with locked(directory):
            if (latest := announced(directory)) > generation:
                raise StaleWriter(directory, step, generation=generation, announced=latest)
            there = _inode(target)
            if there is None or there == damaged:
                if there is not None:
                    target.rename(directory / "staging" / f"damaged-{step}-{uuid.uuid4().hex}")
                staging.rename(target)
                fsync_directory(directory)
                fsync_directory(directory / "staging")
                with contextlib.suppress(OSError):  # the commit stands without the hint
                    hint = directory / "LATEST.new"
                    hint.touch(mode=mode_in(directory, 0o666))
                    hint.write_text(target.name + "\n")
                    hint.replace(directory / "LATEST")
                return
            fsync_directory(directory)  # its writer may have died between the rename and this
        try:
            verify(target, step)
        except DamagedCheckpoint:
            damaged = there
        else:
            return


class KnownGood:
    """Which committed steps were verified, so that nothing is read twice while its files stay as they are.

    What rots on the disk unseen by the filesystem is found when it is read.
    """

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}

    def trust(self, directory: Path, step: int) -> None:
        """We wrote it ourselves."""
        self._seen[step] = _signature(directory / f"step-{step}")

    def is_good(self, directory: Path, step: int) -> bool:
        """Whether it is whole; reads it if it is new or has changed."""
        path = directory / f"step-{step}"
        signature = _signature(path)
        if self._seen.get(step) != signature:
            self._seen.pop(step, None)
            try:
                verify(path, step)
            except DamagedCheckpoint:
                return False
            self._seen[step] = signature
        return True


def collect(directory: Path, *, keep: int, just_committed: int, known: KnownGood) -> list[int]:
    """Remove committed steps below the `keep`-th whole one, never the newest whole one nor the one just committed.

    Damaged ones above that line stay, for people to look at.
    """
    steps = committed_steps(directory)
    good = 0
    line = len(steps)
    for index, step in enumerate(steps):
        good += known.is_good(directory, step)
        if good == keep:
            line = index + 1
            break
    removed = [step for step in steps[line:] if step != just_committed]
    for step in removed:
        gone = directory / "staging" / f"gone-{step}-{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # another writer was quicker
            (directory / f"step-{step}").rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
    return removed


def _signature(path: Path) -> object:
    try:
        stats = [(file.name, file.stat()) for file in sorted(path.iterdir())]
    except OSError as error:
        return error
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # taken, or (a directory on NFS) not to be locked: then only its age tells that it is stale
        return False
    return True


def _is_locked(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return not _try_lock(handle)
    finally:
        os.close(handle)
