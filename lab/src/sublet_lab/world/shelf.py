"""The checkpoints of one job of the world: the shipped code commits and reads them, on a disk that can lose power."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from sublet.errors import DamagedCheckpoint
from sublet.train.checkpoint.commit import Directory, KnownGood
from sublet.train.checkpoint.manifest import TREE, write_files
from sublet_lab.torn_disk import PowerCut, TornDisk
from sublet_lab.world.heap import World
from sublet_lab.world.machine import TrueWall, WorldRng
from sublet_lab.world.truth import JobTruth

KEEP = 3
MOST_ORDERS = 40  # of one save; one that is cut later than that is whole


class SharedDisk:
    """The disk that all jobs of a world save on."""

    def __init__(self, world: World) -> None:
        self.world, self.wall = world, TrueWall(world)
        self.disk = TornDisk(wall=self.wall)
        self._rotten: dict[Path, Callable[[], None]] = {}  # checkpoint -> the listener for its discovery

    def cut_power(self) -> bool:
        """It comes back with what it must have kept, and perhaps more; False if there was nothing on it."""
        before, self.disk = self.disk.orders, self.disk.after_power_cut(self.world.stream("power"))
        return before > 0

    def rot(self, job_id: str, truth: JobTruth, rng: random.Random, found: Callable[[], None] = lambda: None) -> bool:
        """A bit of its newest checkpoint is another one now, and `found` is told when it is read.

        False without two that are whole: no job begins at 0 unasked.
        """
        directory = Directory(_place_of(job_id), disk=self.disk, wall=self.wall)
        newest = directory.steps()[:2]
        if len(newest) < 2 or not all(_is_whole(directory, step) for step in newest):
            return False
        place = directory.place_of(newest[0])
        self.disk.rot(place / TREE, rng)
        self._rotten[place] = found
        truth.told = min(truth.told, newest[1])
        return True

    def pass_over(self, place: Path) -> None:
        """It was read, and is damaged."""
        self._rotten.pop(place, lambda: None)()


class Shelf:
    """As one writer has it."""

    def __init__(self, storage: SharedDisk, truth: JobTruth, job_id: str, writer: str, own: str = "") -> None:
        """`own`: in a folder of the machine that it runs on, from where it is carried to the controller."""
        self._storage, self._truth, self._job_id, self._writer = storage, truth, job_id, writer
        self._place, self._carried = Path(own) if own else _place_of(job_id), bool(own)
        self._rng = WorldRng(storage.world, "checkpoints")
        self._known, self._disk = KnownGood(), storage.disk
        self._generation = 0

    def open(self, generation: int) -> None:
        """We write from now on, and none of a lower generation does."""
        self._generation = max(self._generation, generation)
        self._directory().announce(self._generation)

    def save(self, step: int) -> None:
        """Committed when it returns; SubletError if it cannot be."""
        self._save(self._directory(), step)
        if not self._carried:  # else when the controller says so
            self._truth.told = max(self._truth.told, step)
        self._look()

    def die_saving(self, step: int) -> None:
        """The process ends somewhere in a save."""
        disk, rng = self._storage.disk, self._storage.world.stream("tears")
        disk.cut_at, disk.tears = disk.orders + rng.randrange(MOST_ORDERS), rng
        try:
            self._save(self._directory(), step)
        except PowerCut:
            pass
        finally:
            disk.cut_at = disk.tears = None
        self._look()

    def newest(self) -> tuple[int | None, list[tuple[str, str]]]:
        """The highest step that is whole, and the damaged ones above it, with the reason."""
        directory, skipped = self._directory(), list[tuple[str, str]]()
        for step in directory.steps():
            try:
                directory.verify(step)
            except DamagedCheckpoint as error:
                self._storage.pass_over(directory.place_of(step))
                skipped.append((str(directory.place_of(step)), error.why))
            else:
                return step, skipped
        return None, skipped

    def _save(self, directory: Directory, step: int) -> None:
        directory.announce(self._generation)
        with directory.open_staging(step) as staging:
            write_files(
                staging,
                {TREE: memoryview(f"{self._job_id} {step}".encode())},
                step=step,
                generation=self._generation,
                writer=self._writer,
                meta={},
            )
            directory.commit(staging, step, self._generation)
        directory.collect(keep=KEEP, just_committed=step)
        directory.sweep()

    def _look(self) -> None:
        """A committed checkpoint may be loaded, told or not: no law is broken by that."""
        self._truth.saved = max([self._truth.saved, *self._directory().steps()[:1]])

    def _directory(self) -> Directory:
        if self._storage.disk is not self._disk:  # it has lost its power
            self._disk, self._known = self._storage.disk, KnownGood()
        return Directory(self._place, disk=self._disk, wall=self._storage.wall, rng=self._rng, known=self._known)


def _is_whole(directory: Directory, step: int) -> bool:
    try:
        directory.verify(step)
    except DamagedCheckpoint:
        return False
    return True


def _place_of(job_id: str) -> Path:
    return Path("/checkpoints") / job_id
