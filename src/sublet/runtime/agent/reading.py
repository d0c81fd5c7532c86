"""Whether a script that is started again reads what it had saved: seen in the access times of the files.

The usual mounts (relatime) note the first read after a write; so that the first read of this start is noted too, the
access time is set back before it. A descriptor of each file is held that opens nothing, so that one that is replaced
or deleted right after it was read still says so; they are let go at the first look that settles it, since the disk
keeps what they hold.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
from collections.abc import Iterator

__all__ = ["Reading", "holds_files"]

MOST_HELD = 64  # files, the newest: a script that resumes reads one of them
MOST_LOOKED_AT = 5_000
BACK_NS = 1_000_000_000  # before the last write, as whole seconds are all that some file systems note


class Reading:
    """The files below a directory as they are before a start.

    `told` is "" with nothing there to read, "no", "yes", or "unknown" where the file system notes no reads.
    """

    def __init__(self, folder: str) -> None:
        self._held: dict[int, int] = {}  # descriptor -> the access time that it was set to
        for path in heapq.nlargest(MOST_HELD, _files(folder)) if folder else ():
            self._hold(path[1])
        self.told = ""
        if self._held:
            self.told = "no" if self._notes_reads() else "unknown"
        if self.told != "no":
            self.let_go()

    def look(self, *, settled: bool) -> str:
        """Now; `settled`: nothing that is read after this counts."""
        if self.told == "no" and any(os.fstat(held).st_atime_ns != set_to for held, set_to in self._held.items()):
            self.told = "yes"
        if settled or self.told != "no":
            self.let_go()
        return self.told

    def let_go(self) -> None:
        """Of the files."""
        for held in self._held:
            os.close(held)
        self._held.clear()

    def _hold(self, path: str) -> None:
        with contextlib.suppress(OSError):  # not ours, or gone
            held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _set_back(path)
                self._held[held] = os.fstat(held).st_atime_ns
            except OSError:
                os.close(held)
                raise

    def _notes_reads(self) -> bool:
        """Tried with one of them: mounts say `noatime`, but others than that do not note reads either."""
        held, set_to = next(iter(self._held.items()))
        path = f"/proc/self/fd/{held}"
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - not a path, a descriptor
                file.read(1)
            noted = os.fstat(held).st_atime_ns != set_to
            _set_back(path)
            self._held[held] = os.fstat(held).st_atime_ns
        except OSError:
            return False
        return noted


def holds_files(folder: str) -> bool:
    """Whether there is anything to read below this directory."""
    return next(_files(folder), None) is not None


def _set_back(path: str) -> None:
    written_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 - it may be a descriptor
    os.utime(path, ns=(written_ns - BACK_NS, written_ns))


def _files(folder: str) -> Iterator[tuple[int, str]]:
    """(when it was written, where) of what there is to read."""
    seen = 0
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118 - by the thousand
            with contextlib.suppress(OSError):
                facts = os.lstat(path)
                if facts.st_size and stat.S_ISREG(facts.st_mode):
                    yield facts.st_mtime_ns, path
            seen += 1
            if seen >= MOST_LOOKED_AT:
                return
