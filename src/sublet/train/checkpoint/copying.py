"""A checkpoint from one store to another, verified byte by byte: from the controller's machine to a bucket, and back.

Wherever a copy dies, the target has what it had: data first, then the manifest, then the commit, as a save has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from sublet.errors import DamagedCheckpoint, SubletError
from sublet.train.checkpoint.folder import Folder
from sublet.train.checkpoint.manifest import MANIFEST, Manifest, read_file, read_manifest
from sublet.train.checkpoint.store import Store

__all__ = ["Copied", "Room", "Source", "copy_newest"]

Room = Callable[[int], AbstractContextManager[memoryview]]  # for so many bytes, while a file is on its way


class Source(Protocol):
    """Where it comes from: any store, or what can be read like one."""

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
    """The highest step whose digests are right; None if there is none. StaleWriter if the target is another's by now.

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
        with contextlib.suppress(OSError, SubletError):  # the commit stands; old ones are thrown away next time
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
