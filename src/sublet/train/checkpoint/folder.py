"""Where the files of one checkpoint are: a folder of a disk, or whatever a store has in place of one."""

from __future__ import annotations

import errno
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sublet.train.checkpoint.disk import DISK, Disk, Reading

__all__ = ["CHUNK_BYTES", "DiskFolder", "Folder", "Place"]

CHUNK_BYTES = 1 << 23  # hashed while still in the cache, then written

Place = Path | str  # a path, or a URI


class Folder(Protocol):
    """An OSError says that a file is damaged or not there; a SubletError says nothing about the files."""

    @property
    def place(self) -> Place:
        """As people find it."""

    def open(self, name: str) -> Reading:
        """A file to be read."""

    def write(self, name: str, content: memoryview) -> str:
        """A new file that is there for good when this returns; its SHA-256."""

    def expect(self, name: str, size: int) -> None:
        """Another writer has written this one, and says that it is there; an OSError or a SubletError if it is not."""

    def seal(self) -> None:
        """No more files: the names survive a power cut, too."""


@dataclass(frozen=True, slots=True)
class DiskFolder:
    """One of a filesystem."""

    path: Path
    disk: Disk = DISK

    @property
    def place(self) -> Path:
        """Its path."""
        return self.path

    def open(self, name: str) -> Reading:
        """From the disk."""
        return self.disk.open(self.path / name)

    def write(self, name: str, content: memoryview) -> str:
        """Synced."""
        digest = hashlib.sha256()
        draft = self.disk.create(self.path / name)
        try:
            for start in range(0, len(content), CHUNK_BYTES):
                rest = content[start : start + CHUNK_BYTES]
                digest.update(rest)
                while rest:
                    rest = rest[draft.write(rest) :]
            draft.sync()
        finally:
            draft.close()
        return digest.hexdigest()

    def expect(self, name: str, size: int) -> None:
        """Its writer has synced it; we see that this disk is the same."""
        with self.disk.open(self.path / name) as reading:
            if reading.size != size:
                raise OSError(errno.EIO, f"has {reading.size} bytes, its writer wrote {size}", str(self.path / name))

    def seal(self) -> None:
        """Synced."""
        self.disk.sync_folder(self.path)
