"""Whether a script that is started again reads what it had saved: seen in the access times of the files.

The usual mounts (relatime) note the first read after a write; so that the first read of this start is noted too, the
access time is set back before it. A descriptor of each file is held that opens nothing, so that one that is replaced or
deleted right after it was read still says so. They are let go at the first look that settles it, since the disk keeps
what they hold.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from sublet.runtime.agent.disk import DISK, Disk

__all__ = ["Reading", "holds_files"]

MOST_HELD = 64  # files, the newest: a script that resumes reads one of them
MOST_LOOKED_AT = 5_000


class Reading:
    """The files below a directory as they are before a start.

    `told` is "" with nothing there to read, "no", "yes", or "unknown" where the file system notes no reads.
    """

    def __init__(self, folder: str, disk: Disk = DISK) -> None:
        self._begin((path for _, path in heapq.nlargest(MOST_HELD, _files(folder, disk))) if folder else (), disk)

    @classmethod
    def of(cls, paths: Iterable[str], disk: Disk = DISK) -> Reading:
        """A reading of these files alone."""
        made = cls("", disk)
        made._begin(paths, disk)
        return made

    def _begin(self, paths: Iterable[str], disk: Disk) -> None:
        self._disk = disk
        self._held: dict[int, int] = {}  # its number -> the access time that it was set to
        for path in paths:
            self._hold(path)
        self.told = ""
        if self._held:
            self.told = "no" if self._notes_reads() else "unknown"
        if self.told != "no":
            self.let_go()

    def look(self, *, settled: bool) -> str:
        """Now; `settled`: nothing that is read after this counts."""
        if self.told == "no" and any(self._was_read(held, set_to) for held, set_to in self._held.items()):
            self.told = "yes"
        if settled or self.told != "no":
            self.let_go()
        return self.told

    def let_go(self) -> None:
        """Let go of the files."""
        for held in self._held:
            self._disk.let_go(held)
        self._held.clear()

    def _was_read(self, held: int, set_to_ns: int) -> bool:
        """As far as anybody answers: a file server that is away (ESTALE, EIO) must not cost an agent its life."""
        with contextlib.suppress(OSError):
            return self._disk.held(held).read_ns != set_to_ns
        return False

    def _hold(self, path: str) -> None:
        with contextlib.suppress(OSError):  # not ours, or gone
            held = self._disk.hold(path)
            try:
                self._disk.set_back(path)
                self._held[held] = self._disk.held(held).read_ns
            except OSError:
                self._disk.let_go(held)
                raise

    def _notes_reads(self) -> bool:
        """Tried with one of them: mounts say `noatime`, but others than that do not note reads either."""
        held, set_to = next(iter(self._held.items()))
        try:
            self._disk.peek(held)
            noted = self._disk.held(held).read_ns != set_to
            self._disk.set_back(held)
            self._held[held] = self._disk.held(held).read_ns
        except OSError:
            return False
        return noted


def holds_files(folder: str, disk: Disk = DISK) -> bool:
    """Whether there is anything to read below this directory."""
    return next(_files(folder, disk), None) is not None


def _files(folder: str, disk: Disk) -> Iterator[tuple[int, str]]:
    """(when it was written, where) of what there is to read."""
    for path in islice(disk.below(folder), MOST_LOOKED_AT):
        with contextlib.suppress(OSError):
            facts = disk.facts(path, follow=False)
            if facts.size_bytes and facts.is_regular:
                yield facts.written_ns, path
