"""The files of programs, as an agent looks at them from outside: lengths, times, last lines. It writes none."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple, Protocol

OF_TOOLS = frozenset({"__pycache__", "node_modules", "venv", "wandb", "mlruns"})
BACK_NS = 1_000_000_000  # before the last write, as whole seconds are all that some file systems note


class FileFacts(NamedTuple):
    """A directory's facts of a file."""

    size_bytes: int
    written_ns: int
    read_ns: int
    is_regular: bool


class Disk(Protocol):
    """The disk of one machine. Errors are OSError, as everywhere."""

    def below(self, folder: str, *, plain: bool = False) -> Iterator[str]:
        """Folders with files below a folder, at any depth; none where there is no folder.

        `plain`: not below hidden folders, nor below those that tools keep for themselves; last of all below links
        directly in the folder that lead to another one. Links below these are not followed, so there are no circles.
        """

    def facts(self, path: str, *, follow: bool = True) -> FileFacts:
        """Facts of a file; `follow`: of the target of a symbolic link."""

    def tail(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """The end of a file, without its first `since_bytes`; OSError where it is no plain file, as of `piece`."""

    def piece(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """The bytes after the first `since_bytes` of a file."""

    def touch(self, path: str) -> None:
        """It was written just now, as far as others see; it must be there."""

    def set_back(self, file: str | int) -> None:
        """Set back a path or a held file: it was read before it was written, so that the next read is noted."""

    def hold(self, path: str) -> int:
        """A number by which the file is found when it has been replaced or deleted, without opening it."""

    def held(self, number: int) -> FileFacts:
        """Facts of a held file."""

    def peek(self, number: int) -> None:
        """Read a byte of what is held."""

    def let_go(self, number: int) -> None:
        """The disk may forget a file that was deleted."""


class _MachineDisk:
    """That of this machine."""

    def below(self, folder: str, *, plain: bool = False) -> Iterator[str]:
        links = list[str]()
        for place, folders, names in chain(os.walk(folder), (found for link in links for found in os.walk(link))):
            if plain:
                folders[:] = [name for name in folders if not name.startswith(".") and name not in OF_TOOLS]
            if plain and place == folder:
                links += filter(os.path.islink, (os.path.join(place, name) for name in folders))  # noqa: PTH118 - as below
            for name in names:
                yield os.path.join(place, name)  # noqa: PTH118 - by the thousand

    def facts(self, path: str, *, follow: bool = True) -> FileFacts:
        return _facts(os.stat(path, follow_symlinks=follow))  # noqa: PTH116 - as above

    def tail(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        with _opened(path) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since_bytes, end - most_bytes))
            return file.read(most_bytes)

    def piece(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        with _opened(path) as file:
            file.seek(since_bytes)
            return file.read(most_bytes)

    def touch(self, path: str) -> None:
        os.utime(path)

    def set_back(self, file: str | int) -> None:
        path = _path_of(file) if isinstance(file, int) else file
        written_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 - it may be a descriptor
        os.utime(path, ns=(written_ns - BACK_NS, written_ns))

    def hold(self, path: str) -> int:
        return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)

    def held(self, number: int) -> FileFacts:
        return _facts(os.fstat(number))

    def peek(self, number: int) -> None:
        with os.fdopen(os.open(_path_of(number), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
            file.read(1)

    def let_go(self, number: int) -> None:
        os.close(number)


def _opened(path: str) -> BinaryIO:
    """To read. A job may put a link or a pipe where its file was: that leads nowhere, and delays nothing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", path)
    return os.fdopen(descriptor, "rb")


def _facts(seen: os.stat_result) -> FileFacts:
    return FileFacts(seen.st_size, seen.st_mtime_ns, seen.st_atime_ns, stat.S_ISREG(seen.st_mode))


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


DISK: Disk = _MachineDisk()
