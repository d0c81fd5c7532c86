"""Small files that are whole or not there: written beside, forced to the disk, and put in place by a rename."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """The disk of one machine, as far as small facts go. Errors are OSError, as everywhere."""

    def read(self, path: Path) -> bytes:
        """FileNotFoundError where there is none."""

    def write(self, path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
        """After a crash there is the old file or the new one, never half of one; `durable`, also after a power cut."""

    def append(self, path: Path, data: bytes) -> None:
        """To a draft without other readers: made if there is none, and not forced to the disk."""

    def settle(self, folder: Path, drafts: Mapping[str, str]) -> None:
        """Files of a folder: forced to the disk, then given their names, and the folder after the last of them."""

    def rename(self, source: Path, target: Path) -> None:
        """A file or folder, in one go; nothing is at the target."""

    def remove(self, path: Path) -> None:
        """Whether it was there or not."""

    def remove_tree(self, folder: Path) -> None:
        """With all that is in it, as far as can be."""

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in order; nothing where there is no folder."""

    def make_folder(self, folder: Path) -> None:
        """For its owner alone, with what is missing above it; one that is there stays as it is."""


class _MachineFiles:
    """The disk of this machine."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
        draft = path.with_name(path.name + ".new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
        if durable:
            _sync(path.parent)  # the rename is in there

    def append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def settle(self, folder: Path, drafts: Mapping[str, str]) -> None:
        for draft, name in drafts.items():
            _sync(folder / draft)
            (folder / draft).replace(folder / name)
        _sync(folder)  # renames are in it

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def names(self, folder: Path) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in folder.iterdir())
        return []

    def make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self.make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)


def _sync(path: Path) -> None:
    """A file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FILES: Files = _MachineFiles()
