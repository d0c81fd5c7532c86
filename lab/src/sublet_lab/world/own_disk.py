"""The disk of one rented machine as its agent has it: what workers save there, with a session and without, is on it.

Checkpoints of workers with the SDK lie on a disk that can lose power, and those of scripts on one that notes times;
both see the files of the agent there. Each folder has the name of its machine in its path, so none sees another's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sublet.runtime.agent.disk import FileFacts
from sublet.train.checkpoint.disk import DiskFolder
from sublet_lab.torn_disk import TornDisk
from sublet_lab.world.machine import MemoryFiles
from sublet_lab.world.shelf import SharedDisk as Shelves
from sublet_lab.world.storage import Storage


class OwnDisk:
    """As an agent looks at it."""

    def __init__(self, storage: Storage, shelves: Shelves) -> None:
        self._storage, self._shelves = storage, shelves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def below(self, folder: str, *, plain: bool = False) -> Iterator[str]:
        """Folders of both."""
        yield from _walk(self._shelves.disk, Path(folder))
        yield from self._storage.below(folder, plain=plain)

    def facts(self, path: str, *, follow: bool = True) -> FileFacts:
        """Facts of either."""
        with contextlib.suppress(OSError):
            found = self._shelves.disk.facts(Path(path))
            return FileFacts(found.size, found.changed_ns, found.changed_ns, is_regular=True)
        return self._storage.facts(path, follow=follow)

    def piece(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """Bytes of either."""
        with contextlib.suppress(OSError), self._shelves.disk.open(Path(path)) as reading:
            memory = bytearray(reading.size)
            reading.readinto(memoryview(memory))
            return bytes(memory[since_bytes : since_bytes + most_bytes])
        return self._storage.piece(path, since_bytes=since_bytes, most_bytes=most_bytes)


class OwnFiles(MemoryFiles):
    """As an agent writes to it: what it puts in place below `checkpoints` is where workers look for it."""

    def __init__(self, storage: Storage, shelves: Shelves) -> None:
        super().__init__()
        self._storage, self._shelves = storage, shelves

    def rename(self, source: Path, target: Path) -> None:
        """A step of the SDK, or all that a script had saved."""
        if target.parent.name != "checkpoints" and not target.name.startswith("step-"):
            super().rename(source, target)
            return
        brought = {path.relative_to(source): data for path, data in self.contents.items() if source in path.parents}
        if target.name.startswith("step-"):
            disk = self._shelves.disk
            _make(disk, target)
            for path, data in brought.items():
                DiskFolder(target, disk).write(str(path), memoryview(data))
            disk.sync_folder(target)
            disk.sync_folder(target.parent)
        else:
            for path, data in brought.items():
                self._storage.write(str(target / path), data)
        super().remove_tree(source)

    def remove(self, path: Path) -> None:
        """Remove from all."""
        super().remove(path)
        self._storage.erase(str(path))

    def remove_tree(self, folder: Path) -> None:
        """Remove from all."""
        super().remove_tree(folder)
        self._shelves.disk.remove_tree(folder)
        for path in list(self._storage.below(str(folder))):
            self._storage.erase(path)


def _walk(disk: TornDisk, folder: Path) -> Iterator[str]:
    if not disk.is_folder(folder):
        return
    for name in disk.names(folder):
        path = folder / name
        if disk.is_folder(path):
            yield from _walk(disk, path)
        else:
            yield str(path)


def _make(disk: TornDisk, folder: Path) -> None:
    if not disk.is_folder(folder):
        _make(disk, folder.parent)
        disk.make_folder(folder)
        disk.sync_folder(folder.parent)
