"""The place of checkpoints: a directory (`commit`) or an object store (`bucket`); and copies from one to another.

A copy is verified byte by byte. Wherever it dies, the target has what it had: data first, then the manifest, then the
commit, as in a save.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from sublet.errors import DamagedCheckpoint, InvalidValue, SubletError
from sublet.machine.remote import is_remote, open_uri
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.bucket import Bucket
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.disk import DISK, Disk, Folder, Place
from sublet.train.checkpoint.manifest import MANIFEST, Manifest, read_file, read_manifest
from sublet.wire import files

Store = Directory | Bucket  # a commit is seen by all or by none, and refused to a generation that is over
Room = Callable[[int], AbstractContextManager[memoryview]]  # for so many bytes, while a file is on its way


def step_of(place: Place) -> int:
    """The step of the checkpoint at this place."""
    name = PurePosixPath(place).name
    return int(name.removeprefix("step-").partition(".")[0])


def place_from(where: Place) -> Place:
    """A URI of an object store as it is, anything else as a path."""
    text = str(where)
    return text if is_remote(text) else Path(text.removeprefix("file://"))


def open_store(where: Place, *, disk: Disk = DISK, wall: Wall = WALL, rng: Rng = RNG) -> Store:
    """The store at a path or URI, not contacted yet; InvalidValue, MissingExtra or StoreFailed if it cannot be."""
    place = place_from(where)
    if isinstance(place, Path):
        return Directory(place, disk=disk, wall=wall, rng=rng)
    return Bucket(open_uri(place), wall=wall, rng=rng)


def checkpoint_place(asked: Path | str | None, env: Mapping[str, str]) -> Place | None:
    """By the script's argument and the environment; None = nothing is kept.

    On a node with a disk of its own, the agent carries one directory to the controller. Another directory of the script
    there would be lost with the node.
    """
    given = env.get("SUBLET_CHECKPOINT_DIR") or None
    carried = given is not None and env.get("SUBLET_CHECKPOINT_TIER") == files.DISK
    own = place_from(asked) if asked else None
    if given is None or own is None or not carried or not isinstance(own, Path) or own == Path(given):
        return own or (place_from(given) if given else None)
    if Directory(own).steps():
        allowed = (
            f"left out here: this node's disk is its own, and only {given} is carried from it."
            f" If all nodes see {asked}, write it as checkpoint.uri into the job file; then training goes on from there"
        )
        raise InvalidValue("checkpoint_dir", str(asked), allowed)
    print(  # noqa: T201 - readers of the log look for files there
        f"sublet: checkpoints are kept in {given}, which is carried to the controller, and not in checkpoint_dir ="
        f" {asked}: that would be lost with this node",
        file=sys.stderr,
        flush=True,
    )
    return place_from(given)


class Source(Protocol):
    """The source of a copy: a store, or anything readable like one."""

    def steps(self) -> list[int]:
        """Highest first."""

    def folder(self, step: int) -> Folder:
        """The files of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The newest whole checkpoint of the source, which the target has now."""

    step: int
    size_bytes: int  # that were sent; 0 = the target had it already
    skipped: tuple[str, ...] = ()  # newer ones, which are damaged


def in_memory(size: int) -> AbstractContextManager[memoryview]:
    """Room for a file in the memory of this process."""
    return contextlib.nullcontext(memoryview(bytearray(size)))


def copy_newest(source: Source, target: Store, *, keep: int, room: Room = in_memory) -> Copied | None:
    """Copy the highest step whose digests are right; None if there is none. StaleWriter if a newer one writes there.

    The target keeps `keep` of them. One file at a time is in the `room`.
    """
    skipped: list[str] = []
    for step in source.steps():
        folder = source.folder(step)
        try:
            manifest = read_manifest(folder, step)
            if _has(target, manifest):
                return Copied(step=step, size_bytes=0, skipped=tuple(skipped))
            _copy(folder, target, manifest, room)
        except DamagedCheckpoint as error:
            skipped.append(f"{error.path}: {error.why}")
            continue
        with contextlib.suppress(OSError, SubletError):  # the commit stands; old ones are removed next time
            target.collect(keep=keep, just_committed=step)
            target.sweep()
        return Copied(step=step, size_bytes=manifest.size_bytes, skipped=tuple(skipped))
    return None


def _has(target: Store, manifest: Manifest) -> bool:
    """The same, to the byte: steps of another life of the job have the same numbers."""
    if manifest.step not in target.steps():
        return False
    try:
        return read_manifest(target.folder(manifest.step), manifest.step) == manifest
    except DamagedCheckpoint:
        return False


def _copy(folder: Folder, target: Store, manifest: Manifest, room: Room) -> None:
    target.announce(manifest.generation)
    with target.open_staging(manifest.step) as staging:
        for file in manifest.files:
            with room(file.size) as memory:
                read_file(folder, file, [(0, memory)])
                if staging.write(file.name, memory) != file.sha256:
                    raise DamagedCheckpoint(staging.place, f"{file.name} was not written as it was read")
        staging.write(MANIFEST, memoryview(manifest.to_json()))
        staging.seal()
        target.commit(staging, manifest.step, manifest.generation)
