"""The disk that checkpoints lie on, order by order: a power cut can come between any two of them.

Names survive a power cut once their folder was synced, contents once their draft was. A simulated disk
(`sublet_lab.torn_disk`) keeps no more than that.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

__all__ = ["DISK", "Disk", "Draft", "Facts", "Hold", "Reading"]

LOCK_POLL_S = 0.01
OTHERS = 0o077  # bits of everybody but the owner


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a file or folder from outside."""

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
        """What was written survives a power cut."""
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


class _MachineReading:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.readinto = self._file.readinto

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


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
        """Whether we have it or not, we do not want it any more."""
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
        """What is in a folder, in order."""
        return sorted(path.name for path in folder.iterdir())

    def facts(self, path: Path) -> Facts:
        """FileNotFoundError where there is nothing."""
        found = path.stat()
        return Facts(found.st_ino, found.st_size, found.st_mtime_ns)

    def is_folder(self, path: Path) -> bool:
        """Whether there is one."""
        return path.is_dir()

    def make_folder(self, path: Path) -> None:
        """In a folder that is there; FileExistsError if it is there already."""
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
        """In place of what was there, in one go; nobody minds if it is lost."""
        draft = path.with_name(path.name + ".new")
        draft.touch(mode=_mode_in(path.parent, 0o666))
        draft.write_bytes(content)
        draft.replace(path)

    def open(self, path: Path) -> Reading:
        """To be read."""
        return _MachineReading(path)

    def rename(self, source: Path, target: Path) -> None:
        """In one go; nothing is at the target."""
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
