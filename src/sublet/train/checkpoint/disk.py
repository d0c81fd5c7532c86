"""The disk of checkpoints, operation by operation: a power cut can come between any two of them.

Names survive a power cut once their folder was synced, contents once their draft was. A simulated disk
(`sublet_lab.torn_disk`) keeps no more than that.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

CHUNK_BYTES = 1 << 23  # hashed while still in the cache, then written
LOCK_POLL_S = 0.01
OTHERS = 0o077  # bits of group and others

Place = Path | str  # a path, or a URI


@dataclass(frozen=True, slots=True)
class Facts:
    """Metadata of a file or folder."""

    inode: int  # the same while it is the same, whatever its name
    size: int
    changed_ns: int  # of its contents, by the clock of 1970


class Draft:
    """A new file that is being written."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, content: memoryview, /) -> int:
        """Some of it, at least a byte; how many."""
        return os.write(self._handle, content)

    def sync(self) -> None:
        """Its content survives a power cut."""
        os.fsync(self._handle)

    def close(self) -> None:
        """No more of it."""
        os.close(self._handle)


class Reading(Protocol):
    """A file that is being read from its beginning."""

    @property
    def size(self) -> int:
        """In bytes."""

    def readinto(self, memory: memoryview, /) -> int | None:
        """Some of what comes next; how many bytes, 0 at its end."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class _MachineReading(io.FileIO):
    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size


class Hold:
    """A lock of one process on a file or folder, by flock: the kernel takes it back from a process that dies."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def take(self, wait_s: float = 0.0) -> bool:
        """Whether it is ours now, or within so many seconds."""
        deadline_s = time.monotonic() + wait_s
        while not self._try():
            if wait_s <= 0.0 or time.monotonic() > deadline_s:
                return False
            time.sleep(LOCK_POLL_S)
        return True

    def give_back(self) -> None:
        """It is no longer ours."""
        fcntl.flock(self._handle, fcntl.LOCK_UN)  # explicit, because a forked child may have inherited the handle

    def close(self) -> None:
        """Close the handle, locked or not."""
        os.close(self._handle)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # taken, or (a directory on NFS) not to be locked: then only its age tells that it is stale
            return False
        return True


class Disk:
    """The filesystems of this machine. What is made is closed to others where the folder that it is in is.

    Errors are OSError, as everywhere.
    """

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, sorted."""
        return sorted(path.name for path in folder.iterdir())

    def facts(self, path: Path) -> Facts:
        """FileNotFoundError where there is nothing."""
        found = path.stat()
        return Facts(found.st_ino, found.st_size, found.st_mtime_ns)

    def is_folder(self, path: Path) -> bool:
        """Whether there is one."""
        return path.is_dir()

    def make_folder(self, path: Path) -> None:
        """In a folder that exists; FileExistsError if it is there already."""
        path.mkdir(mode=_mode_in(path.parent, 0o777))

    def sync_folder(self, folder: Path) -> None:
        """The names in it survive a power cut."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def create(self, path: Path) -> Draft:
        """A new file; FileExistsError if it is there already."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return Draft(os.open(path, flags, _mode_in(path.parent, 0o644)))

    def touch(self, path: Path) -> None:
        """An empty file, unless there is one."""
        mode = _mode_in(path.parent, 0o644)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode))

    def put(self, path: Path, content: bytes) -> None:
        """Replace a file atomically; it may be lost in a power cut."""
        draft = path.with_name(path.name + ".new")
        draft.touch(mode=_mode_in(path.parent, 0o666))
        draft.write_bytes(content)
        draft.replace(path)

    def open(self, path: Path) -> Reading:
        """To be read."""
        return _MachineReading(path)

    def rename(self, source: Path, target: Path) -> None:
        """Atomically; the target does not exist."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """A file, whether it is there or not."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """A folder with all that is in it, as far as can be."""
        shutil.rmtree(path, ignore_errors=True)

    def hold(self, path: Path, *, folder: bool = False) -> Hold:
        """A lock to be taken: on a file, which is made if there is none, or on a folder."""
        if folder:
            return Hold(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        mode = _mode_in(path.parent, 0o644)
        return Hold(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode))


def _mode_in(folder: Path, mode: int) -> int:
    """For what is made in a folder: closed to others where that one is, and as the umask has it elsewhere."""
    return mode if folder.stat().st_mode & OTHERS else mode & ~OTHERS


DISK = Disk()


class Folder(Protocol):
    """The files of one checkpoint. An OSError: a file is damaged or missing; a SubletError says nothing of files."""

    @property
    def place(self) -> Place:
        """The path or URI."""

    def open(self, name: str) -> Reading:
        """A file to be read."""

    def write(self, name: str, content: memoryview) -> str:
        """A new file that is there for good when this returns; its SHA-256."""

    def expect(self, name: str, size: int) -> None:
        """Check that another writer's file is there; an OSError or a SubletError if it is not."""

    def seal(self) -> None:
        """No more files: the names survive a power cut, too."""


@dataclass(frozen=True, slots=True)
class DiskFolder:
    """A folder of a filesystem."""

    place: Path
    disk: Disk = DISK

    def open(self, name: str) -> Reading:
        """From the disk."""
        return self.disk.open(self.place / name)

    def write(self, name: str, content: memoryview) -> str:
        """Synced."""
        digest = hashlib.sha256()
        draft = self.disk.create(self.place / name)
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
        """Synced by its writer; we check that the disk is the same."""
        with self.disk.open(self.place / name) as reading:
            if reading.size != size:
                raise OSError(errno.EIO, f"has {reading.size} bytes, its writer wrote {size}", str(self.place / name))

    def seal(self) -> None:
        """Synced."""
        self.disk.sync_folder(self.place)
