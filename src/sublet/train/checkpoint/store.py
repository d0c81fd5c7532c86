"""What checkpoints need of the place that they lie in: a directory (`commit`) or an object store (`bucket`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Protocol

from sublet.machine.dice import DICE, Dice
from sublet.machine.remote import is_remote, open_uri
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.bucket import Bucket
from sublet.train.checkpoint.commit import LOCK_WAIT_S, Directory
from sublet.train.checkpoint.disk import DISK, Disk
from sublet.train.checkpoint.folder import Folder, Place

__all__ = ["Store", "open_store", "place_from", "step_of"]


class Store(Protocol):
    """The checkpoints of one job, as each of its writers and readers has them.

    A commit is seen by all or by none, and is refused to a generation below one that was announced. OSError or a
    SubletError where it fails: what was committed is as it was.
    """

    @property
    def place(self) -> Place:
        """As people find it."""

    def place_of(self, step: int) -> Place:
        """Where the checkpoint of a step is, if there is one."""

    def folder(self, step: int) -> Folder:
        """The files of a step."""

    def steps(self) -> list[int]:
        """Steps that are committed, highest first; whether they are whole is not known yet."""

    def commit_age_s(self) -> float:
        """Seconds since the highest step was committed; infinite without any that can be seen."""

    def announced(self) -> int:
        """The highest generation that was announced; 0, which fences off nobody, if none was."""

    def announce(self, generation: int) -> None:
        """From now on nobody of a lower generation commits, but who is at it already."""

    def fence(self, generation: int) -> None:
        """As `announce`, and when it returns nobody is at it any more."""

    def open_staging(self, step: int, token: str = "") -> AbstractContextManager[Folder]:
        """A new folder that is ours; what is left of it at the end is removed.

        Whoever hears of its `token`, which nobody else may ever have, can write into it, too.
        """

    def share_staging(self, step: int, token: str, generation: int) -> Folder:
        """The folder that another of this generation has opened."""

    def commit(self, staging: Folder, step: int, generation: int) -> None:
        """Make a sealed folder the checkpoint of its step, or StaleWriter."""

    def collect(self, *, keep: int, just_committed: int) -> list[int]:
        """Remove steps below the `keep`-th whole one; which."""

    def sweep(self, *, wait_s: float = LOCK_WAIT_S) -> None:
        """Remove what dead writers left."""

    def set_aside(self, steps: list[int]) -> Place:
        """Take damaged steps out of the way of those to come; where they are then."""

    def pass_over(self, step: int) -> None:
        """A reader has found this step damaged."""


def step_of(place: Place) -> int:
    """Of which step the checkpoint at this place is."""
    name = PurePosixPath(place).name
    return int(name.removeprefix("step-").partition(".")[0])


def place_from(where: Place) -> Place:
    """A URI of an object store as it is, anything else as a path."""
    text = str(where)
    return text if is_remote(text) else Path(text.removeprefix("file://"))


def open_store(where: Place, *, disk: Disk = DISK, wall: Wall = WALL, dice: Dice = DICE) -> Store:
    """The store at a path or URI. Nobody is asked yet; InvalidValue, MissingExtra or StoreFailed if it cannot be."""
    place = place_from(where)
    if isinstance(place, Path):
        return Directory(place, disk=disk, wall=wall, dice=dice)
    return Bucket(open_uri(place), wall=wall, dice=dice)
