"""Root touches what jobs have made as if it were the job: where a link leads there, the job could go by itself.

Looking first whether something is a link is not enough: a job may put one there a moment later.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import islice

from sublet.runtime.agent.disk import Disk, FileFacts

__all__ = ["Acting", "ActingDisk", "acting_as", "as_we_are"]

Acting = Callable[[str], AbstractContextManager[None]]  # of a path
AT_ONCE = 1_000  # names of a folder, as another user
NOBODY = -1  # that asks for the identity, and changes nothing


def as_we_are(_: str) -> AbstractContextManager[None]:
    """For machines on which jobs run as the agent's user."""
    return nullcontext()


@contextmanager
def acting_as(number: int) -> Iterator[None]:
    """Files see this user and this group, and no others, in this thread; signals and processes still see root."""
    groups = os.getgroups()
    try:
        os.setgroups([])
        _be(number)
        yield
    finally:
        _be(0)
        os.setgroups(groups)


def _be(number: int) -> None:
    """For files alone; they return the earlier identity, so it takes another question to see whether it went well."""
    for change in _changes():
        change(number)
        if change(NOBODY) != number:
            raise PermissionError(f"cannot act as the user {number}")


@cache
def _changes() -> tuple[Callable[[int], int], ...]:
    library = ctypes.CDLL(None)
    return library.setfsgid, library.setfsuid


class ActingDisk:
    """A disk on which each path is touched as `acting` says."""

    def __init__(self, disk: Disk, acting: Acting) -> None:
        self._disk, self._acting = disk, acting

    def below(self, folder: str, *, plain: bool = False) -> Iterator[str]:
        """As all of these, like that of `Disk`."""
        found, names = self._disk.below(folder, plain=plain), [""]
        while names:
            with self._acting(folder):
                names = list(islice(found, AT_ONCE))
            yield from names

    def facts(self, path: str, *, follow: bool = True) -> FileFacts:
        """Facts of a file."""
        with self._acting(path):
            return self._disk.facts(path, follow=follow)

    def tail(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """Its end."""
        with self._acting(path):
            return self._disk.tail(path, since_bytes=since_bytes, most_bytes=most_bytes)

    def piece(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """A part of it."""
        with self._acting(path):
            return self._disk.piece(path, since_bytes=since_bytes, most_bytes=most_bytes)

    def touch(self, path: str) -> None:
        """It was written just now."""
        with self._acting(path):
            self._disk.touch(path)

    def set_back(self, file: str | int) -> None:
        """It was read before it was written. Set a held file back as the job."""
        with nullcontext() if isinstance(file, int) else self._acting(file):
            self._disk.set_back(file)

    def hold(self, path: str) -> int:
        """Without opening it."""
        with self._acting(path):
            return self._disk.hold(path)

    def held(self, number: int) -> FileFacts:
        """Facts of a held file."""
        return self._disk.held(number)

    def peek(self, number: int) -> None:
        """At what is held."""
        self._disk.peek(number)

    def let_go(self, number: int) -> None:
        """Let go of it."""
        self._disk.let_go(number)
