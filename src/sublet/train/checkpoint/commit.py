"""A directory of checkpoints on one filesystem: the right to commit, the commit, and removal.

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
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sublet.errors import CheckpointFailed, DamagedCheckpoint, StaleWriter
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.disk import DISK, Disk, DiskFolder, Folder
from sublet.train.checkpoint.manifest import Manifest, verify

STALE_S = 86_400.0  # a write that takes a day is dead
LOCK_WAIT_S = 30.0  # held for one rename and one fsync of a directory
NAME_BYTES = 16  # random, in the name of a staging directory: it is unique
STEP = re.compile(r"step-(0|[1-9]\d*)")


class Directory:
    """One such directory, as each of its writers and readers has it."""

    def __init__(
        self, path: Path, *, disk: Disk = DISK, wall: Wall = WALL, rng: Rng = RNG, known: KnownGood | None = None
    ) -> None:
        self.place, self.disk = path, disk
        self._wall, self._rng = wall, rng
        self._known = KnownGood() if known is None else known

    def place_of(self, step: int) -> Path:
        """The folder of a step."""
        return self.place / f"step-{step}"

    def steps(self) -> list[int]:
        """Steps that have a folder, highest first; not verified yet."""
        try:
            names = self.disk.names(self.place)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((int(match[1]) for name in names if (match := STEP.fullmatch(name))), reverse=True)

    def verify(self, step: int) -> Manifest:
        """Read all of a step; DamagedCheckpoint if something is wrong."""
        return verify(self.folder(step), step)

    def folder(self, step: int) -> Folder:
        """The files of a step."""
        return DiskFolder(self.place_of(step), self.disk)

    def pass_over(self, step: int) -> None:
        """Nothing: a damaged step is found again by reading."""

    def commit_age_s(self) -> float:
        """Seconds since the highest step was written; infinite without any that can be seen."""
        with contextlib.suppress(OSError):
            for step in self.steps()[:1]:
                return max(0.0, self._age_s(self.place_of(step)))
        return math.inf

    def announced(self) -> int:
        """The highest generation that was announced; 0 if none was."""
        try:
            names = self.disk.names(self.place / "fence")
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def announce(self, generation: int) -> None:
        """From now on no writer of a lower generation commits. Lower ones are removed once this is on disk."""
        fence = self.place / "fence"
        if self.announced() < generation:
            self._make(fence)
            self.disk.touch(fence / str(generation))
            self.disk.sync_folder(fence)
            for name in self.disk.names(fence):
                if name.isdecimal() and int(name) < generation:
                    self.disk.remove(fence / name)

    def fence(self, generation: int) -> None:
        """As `announce`; when it returns, commits that began before it have ended."""
        self.announce(generation)
        with self.locked():
            pass

    @contextlib.contextmanager
    def locked(self, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold LOCK; it is free again if this process dies."""
        path = self.place / "LOCK"
        hold = self.disk.hold(path)
        try:
            if not hold.take(wait_s):
                why = f"another process has held it for {wait_s:g} s"
                raise CheckpointFailed(path, why, hint=f"see who: fuser {path}")
            try:
                yield
            finally:
                hold.give_back()
        finally:
            hold.close()

    @contextlib.contextmanager
    def open_staging(self, step: int, token: str = "") -> Iterator[Folder]:
        """A new directory that is ours while we live; what is left of it at the end is removed."""
        self._make(self.place / "staging")
        path = self.place / "staging" / f"{step}-{token}" if token else self._in_staging(str(step))
        with self.locked():  # between the making and the lock, a sweep would take it for a dead writer's
            self.disk.make_folder(path)
            hold = self.disk.hold(path, folder=True)
            hold.take()
        try:
            yield DiskFolder(path, self.disk)
        finally:
            hold.close()
            self.disk.remove_tree(path)

    def share_staging(self, step: int, token: str, generation: int) -> Folder:  # noqa: ARG002 - it is not in the name
        """The open folder of another writer, which holds its lock."""
        return DiskFolder(self.place / "staging" / f"{step}-{token}", self.disk)

    def set_aside(self, steps: list[int]) -> Path:
        """Take steps out of the way of new ones; they stay, for people to look at. Returns their place."""
        place = self.place / "damaged"
        self._make(place)
        with self.locked():
            for step in steps:
                with contextlib.suppress(FileNotFoundError):  # another reader was quicker
                    self.disk.rename(self.place_of(step), place / f"step-{step}-{self._rng.token(4)}")
            self.disk.sync_folder(self.place)
        return place

    def sweep(self, *, wait_s: float = LOCK_WAIT_S) -> None:
        """Remove leftovers of dead writers in staging, and those older than a day."""
        staging = self.place / "staging"
        if not self.disk.is_folder(staging):
            return
        with self.locked(wait_s=wait_s):
            for name in self.disk.names(staging):
                with contextlib.suppress(OSError):  # its writer removes it at this moment
                    path = staging / name
                    if self._age_s(path) > STALE_S or not self._is_locked(path):
                        self.disk.remove_tree(path)

    def commit(self, staging: Folder, step: int, generation: int) -> None:
        """Give a complete staging directory its name, unless a higher generation was announced.

        If the step is there already and whole, that one stays: the same step of the same training. If it is damaged it
        makes room, and for a moment there is none of this step, as for a reader there was none before.
        """
        disk, target = self.disk, self.place_of(step)
        damaged: int | None = None
        while True:
            with self.locked():
                if (latest := self.announced()) > generation:
                    raise StaleWriter(self.place, step, generation=generation, announced=latest)
                there = self._inode(target)
                if there is None or there == damaged:
                    if there is not None:
                        disk.rename(target, self._in_staging(f"damaged-{step}"))
                    disk.rename(Path(staging.place), target)
                    disk.sync_folder(self.place)
                    disk.sync_folder(self.place / "staging")
                    with contextlib.suppress(OSError):  # the commit stands without the hint
                        disk.put(self.place / "LATEST", f"{target.name}\n".encode())
                    return
                disk.sync_folder(self.place)  # its writer may have died between the rename and this
            try:
                self.verify(step)
            except DamagedCheckpoint:
                damaged = there
            else:
                return

    def collect(self, *, keep: int, just_committed: int) -> list[int]:
        """Remove committed steps below the `keep`-th whole one, never the newest whole one nor the one just committed.

        Damaged ones above that line stay, for people to look at.
        """
        self._known.trust(self, just_committed)
        below = below_whole(self.steps(), partial(self._known.is_good, self), keep)
        removed = [step for step in below if step != just_committed]
        for step in removed:
            gone = self._in_staging(f"gone-{step}")
            with contextlib.suppress(FileNotFoundError):  # another writer was quicker
                self.disk.rename(self.place_of(step), gone)
                self.disk.remove_tree(gone)
        return removed

    def signature(self, step: int) -> object:
        """Equal to that of another time if nothing has touched the files of this step meanwhile."""
        path = self.place_of(step)
        try:
            facts = [(name, self.disk.facts(path / name)) for name in self.disk.names(path)]
        except OSError as error:
            return error
        return facts

    def _make(self, directory: Path) -> None:
        """Make it and what is missing above it, so that it survives a power cut."""
        if not self.disk.is_folder(directory):
            self._make(directory.parent)
            try:
                self.disk.make_folder(directory)
            except FileExistsError:
                if not self.disk.is_folder(directory):
                    raise  # otherwise another was quicker
            self.disk.sync_folder(directory.parent)

    def _in_staging(self, what: str) -> Path:
        return self.place / "staging" / f"{what}-{self._rng.token(NAME_BYTES)}"

    def _age_s(self, path: Path) -> float:
        return self._wall.unix() - self.disk.facts(path).changed_ns / 1e9

    def _inode(self, path: Path) -> int | None:
        try:
            return self.disk.facts(path).inode
        except FileNotFoundError:
            return None

    def _is_locked(self, path: Path) -> bool:
        hold = self.disk.hold(path, folder=True)
        try:
            return not hold.take()
        finally:
            hold.close()


def below_whole(all_of: Sequence[Any], is_good: Callable[[Any], bool], keep: int) -> Sequence[Any]:
    """Elements below the `keep`-th good one; no more are checked than necessary."""
    for index, each in enumerate(all_of):
        keep -= is_good(each)
        if not keep:
            return all_of[index + 1 :]
    return ()


class KnownGood:
    """Verified steps, so that no step is read twice while its files stay as they are.

    Silent damage of a disk is found when a step is loaded.
    """

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}

    def trust(self, directory: Directory, step: int) -> None:
        """It was written or read by us."""
        self._seen[step] = directory.signature(step)

    def is_good(self, directory: Directory, step: int) -> bool:
        """Whether it is whole; reads it if it is new or has changed."""
        signature = directory.signature(step)
        if self._seen.get(step) != signature:
            self._seen.pop(step, None)
            try:
                directory.verify(step)
            except DamagedCheckpoint:
                return False
            self._seen[step] = signature
        return True
