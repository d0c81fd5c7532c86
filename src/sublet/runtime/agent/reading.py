"""Whether a script that is started again goes on from its files: by access times, and by what lies in its directory.

The usual mounts (relatime) note the first read after a write; so that the first read of this start is noted too, the
access time is set back before it. A descriptor of each file is held that opens nothing, so that one that is replaced or
deleted right after it was read still says so. They are let go at the first look that settles it, since the disk keeps
what they hold.

A file that an earlier start of the job has written, and that this start reads, is a checkpoint; what this start writes
under the same name, but for numbers in it, is saved. Logs, code, and what tools keep for themselves are none.
"""

from __future__ import annotations

import contextlib
import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from sublet.machine.wall import WALL, Wall
from sublet.runtime.agent.disk import DISK, Disk

MOST_FILES = 5_000  # looked at
LOOKS_COST = 0.02  # of the time, at most
NO_STATE = (".py", ".pyc", ".pyo", ".sh", ".log", ".out", ".err", ".lock")
MOST_HELD = 64  # files, the newest: a script that resumes reads one of them
MOST_LOOKED_AT = 5_000


class OwnFiles(NamedTuple):
    """The visible facts of them; times are wall seconds ago."""

    looked: bool = False  # at all of them
    wrote_ago_s: float | None = None  # None = in this life it has written none that was seen
    saved_ago_s: float | None = None  # ... none like the one that it went on from
    loaded_ago_s: float | None = None  # since that one was written; None = none was seen to be read


class Resuming:
    """The files below one directory, from before a start on."""

    def __init__(
        self,
        folder: str,
        now_s: float,
        *,
        began_ago_s: float | None = None,  # the job's first start; None = what lies there may be of others
        apart: Sequence[str] = (),  # paths of ours, and those that are watched in another way
        disk: Disk = DISK,
        wall: Wall = WALL,
    ) -> None:
        self._folder, self._disk, self._wall = folder, disk, wall
        self._apart = tuple(f"{path.rstrip('/')}/" for path in apart if path)
        self._began_s = now_s
        self._files: dict[str, int] = {}
        self._readings: dict[str, Reading] = {}  # of what earlier starts have written, as long as it is as it was
        self._loaded_ns, self._kinds = 0, set[str]()  # of what was read
        self._look_s = now_s
        self._find(now_s)
        self._before = dict(self._files)
        if began_ago_s:
            since_ns = (wall.unix() - began_ago_s) * 1e9
            found = ((written_ns, path) for path, written_ns in self._files.items() if written_ns >= since_ns)
            for _, path in heapq.nlargest(MOST_HELD, found):
                self._readings[path] = Reading.of([path], disk)

    def look(self, now_s: float, *, last: bool = False) -> OwnFiles:
        """Now; the `last` one is made whatever it costs."""
        for path in list(self._readings):
            self._look_at(path)
        if last or now_s >= self._look_s:
            self._find(now_s)
        wrote = {path: written_ns for path, written_ns in self._files.items() if written_ns != self._before.get(path)}
        saved = {path: written_ns for path, written_ns in wrote.items() if _kind(path) in self._kinds}
        if last:
            self.let_go()
        return OwnFiles(
            looked=self._whole,
            wrote_ago_s=self._ago_s(max(wrote.values()), now_s) if wrote else None,
            saved_ago_s=self._ago_s(max(saved.values()), now_s) if saved else None,
            loaded_ago_s=max(0.0, self._wall.unix() - self._loaded_ns / 1e9) if self._loaded_ns else None,
        )

    def let_go(self) -> None:
        """Let go of the files."""
        for reading in self._readings.values():
            reading.let_go()
        self._readings.clear()

    def _look_at(self, path: str) -> None:
        reading, before_ns, as_it_was = self._readings[path], self._before[path], False
        with contextlib.suppress(OSError):  # it was replaced while we looked
            as_it_was = self._disk.facts(path, follow=False).written_ns == before_ns
        told = reading.look(settled=not as_it_was)  # reading what this start wrote is not going on from it
        if told == "yes":
            self._loaded_ns = max(self._loaded_ns, before_ns)
            self._kinds.add(_kind(path))
        if told != "no" or not as_it_was:
            del self._readings[path]

    def _find(self, now_s: float) -> None:
        began_s, files, count = self._wall.monotonic(), dict[str, int](), 0
        for path in islice(self._disk.below(self._folder, plain=True), MOST_FILES + 1):
            count += 1
            if path.endswith(NO_STATE) or ".tfevents." in path or path.startswith(self._apart):
                continue
            with contextlib.suppress(OSError):  # it was replaced while we looked
                facts = self._disk.facts(path, follow=False)
                if facts.is_regular and facts.size_bytes:
                    files[path] = facts.written_ns
        self._files, self._whole = files, count <= MOST_FILES
        self._look_s = now_s + (self._wall.monotonic() - began_s) / LOOKS_COST

    def _ago_s(self, written_ns: int, now_s: float) -> float:
        """In its life, whatever the clock of a file server says."""
        return min(max(0.0, self._wall.unix() - written_ns / 1e9), now_s - self._began_s)


def _kind(path: str) -> str:
    """Checkpoints of one series differ in a number."""
    return re.sub(r"\d+", "#", path)


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
