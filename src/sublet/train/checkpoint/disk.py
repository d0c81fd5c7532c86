"""The disk that checkpoints lie on, order by order: a power cut can come between any two of them.

Names survive a power cut once their folder was synced, contents once their draft was. A simulated disk
(`sublet.testing.torn_disk`) keeps no more than that.
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


class Draft(Protocol):
    """A new file that is being written."""

    def write(self, content: memoryview, /) -> int:
        """Some of it, at least a byte; how many."""

    def sync(self) -> None:
        """What was written survives a power cut."""

    def close(self) -> None:
        """No more of it."""


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


class Hold(Protocol):
    """A lock of one process on a file or folder, free again when the process ends."""

    def take(self, wait_s: float = 0.0) -> bool:
        """Whether it is ours now, or within so many seconds."""

    def give_back(self) -> None:
        """It is no longer ours."""

    def close(self) -> None:
        """Whether we have it or not, we do not want it any more."""


class Disk(Protocol):
    """One filesystem. Errors are OSError, as everywhere."""

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, in order."""

    def facts(self, path: Path) -> Facts:
        """FileNotFoundError where there is nothing."""

    def is_folder(self, path: Path) -> bool:
        """Whether there is one."""

    def make_folder(self, path: Path) -> None:
        """In a folder that is there; FileExistsError if it is there already."""

    def sync_folder(self, folder: Path) -> None:
        """The names in it survive a power cut."""

    def create(self, path: Path) -> Draft:
        """A new file; FileExistsError if it is there already."""

    def touch(self, path: Path) -> None:
        """An empty file, unless there is one."""

    def put(self, path: Path, content: bytes) -> None:
        """In place of what was there, in one go; nobody minds if it is lost."""

    def open(self, path: Path) -> Reading:
        """To be read."""

    def rename(self, source: Path, target: Path) -> None:
        """In one go; nothing is at the target."""

    def remove(self, path: Path) -> None:
        """A file, whether it is there or not."""

    def remove_tree(self, path: Path) -> None:
        """A folder with all that is in it, as far as can be."""

    def hold(self, path: Path, *, folder: bool = False) -> Hold:
        """A lock to be taken: on a file, which is made if there is none, or on a folder."""


class _MachineDraft:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, content: memoryview) -> int:
        return os.write(self._handle, content)

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


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


class _MachineHold:
    """By flock, which the kernel takes back from a process that dies."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def take(self, wait_s: float = 0.0) -> bool:
        deadline_s = time.monotonic() + wait_s
        while not self._try():
            if wait_s <= 0.0 or time.monotonic() > deadline_s:
                return False
            time.sleep(LOCK_POLL_S)
        return True

    def give_back(self) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_UN)  # explicit, because a forked child may have inherited the handle

    def close(self) -> None:
        os.close(self._handle)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # taken, or (a directory on NFS) not to be locked: then only its age tells that it is stale
            return False
        return True


class _MachineDisk:
    """The filesystems of this machine. What is made is closed to others where the folder that it is in is."""

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def facts(self, path: Path) -> Facts:
        found = path.stat()
        return Facts(found.st_ino, found.st_size, found.st_mtime_ns)

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=_mode_in(path.parent, 0o777))

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def create(self, path: Path) -> Draft:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return _MachineDraft(os.open(path, flags, _mode_in(path.parent, 0o644)))

    def touch(self, path: Path) -> None:
        mode = _mode_in(path.parent, 0o644)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode))

    def put(self, path: Path, content: bytes) -> None:
        draft = path.with_name(path.name + ".new")
        draft.touch(mode=_mode_in(path.parent, 0o666))
        draft.write_bytes(content)
        draft.replace(path)

    def open(self, path: Path) -> Reading:
        return _MachineReading(path)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def hold(self, path: Path, *, folder: bool = False) -> Hold:
        if folder:
            return _MachineHold(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        mode = _mode_in(path.parent, 0o644)
        return _MachineHold(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode))


def _mode_in(folder: Path, mode: int) -> int:
    """For what is made in a folder: closed to others where that one is, and as the umask has it elsewhere."""
    return mode if folder.stat().st_mode & OTHERS else mode & ~OTHERS


DISK: Disk = _MachineDisk()
