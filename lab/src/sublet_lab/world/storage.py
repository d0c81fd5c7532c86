"""The file server of programs of the world, for output and checkpoints: one, in memory, that notes times."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sublet.runtime.agent.disk import BACK_NS, FileFacts
from sublet_lab.world.heap import Struck, nobody

NS = 1_000_000_000
DAY_NS = 86_400 * NS  # relatime: a read is noted once a day, and after every write


@dataclass(eq=False, slots=True)
class _File:
    data: bytes
    written_ns: int
    read_ns: int


class Storage:
    """All machines see the same files. As an agent's disk it only looks; programs write and read."""

    def __init__(self, unix_s: Callable[[], float], *, notes_reads: bool = True) -> None:
        self._unix_s, self._notes_reads = unix_s, notes_reads
        self._files: dict[str, _File] = {}
        self._held: dict[int, _File] = {}
        self._numbers = itertools.count(3)
        self.gone = False  # no answer: a server that is away
        self.flaky: random.Random | None = None  # it answers now and then
        self.missed: Struck = nobody  # told of every question that is not answered

    # ------------------------------------------------------------------ what programs do

    def append(self, path: str, text: str) -> None:
        """As output goes to a log."""
        self._answer(path)
        now_ns = self._now_ns()
        file = self._files.setdefault(path, _File(b"", now_ns, now_ns))
        file.data, file.written_ns = file.data + text.encode(), now_ns

    def write(self, path: str, data: bytes) -> None:
        """A draft, put in place by a rename: a holder of the old file still has that."""
        self._answer(path)
        now_ns = self._now_ns()
        self._files[path] = _File(data, now_ns, now_ns)

    def read(self, path: str) -> bytes:
        """All of it; the read is noted, as the server is mounted."""
        file = self._find(path)
        self._note_read(file)
        return file.data

    def erase(self, path: str) -> None:
        """Whether it is there or not; a holder still has it."""
        self._files.pop(path, None)

    def size_bytes(self, path: str) -> int:
        """Nothing where there is none."""
        return len(self._files[path].data) if path in self._files else 0

    def come_back(self) -> None:
        """The server answers again."""
        self.gone, self.flaky = False, None

    # ------------------------------------------------------------------ what an agent sees

    def below(self, folder: str, *, plain: bool = False) -> Iterator[str]:
        """In order; nothing of a server that is away, as with a walk through folders."""
        del plain  # there are no others
        if self.gone:
            self.missed()
            return iter(())
        return (path for path in sorted(self._files) if path.startswith(f"{folder.rstrip('/')}/"))

    def facts(self, path: str, *, follow: bool = True) -> FileFacts:
        """Facts of a file; there are no links."""
        del follow
        return _facts(self._find(path))

    def tail(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """Its end."""
        data = self._find(path).data
        return data[max(since_bytes, len(data) - most_bytes) :]

    def piece(self, path: str, *, since_bytes: int, most_bytes: int) -> bytes:
        """Bytes of its middle."""
        return self._find(path).data[since_bytes : since_bytes + most_bytes]

    def touch(self, path: str) -> None:
        """Written now."""
        self._find(path).written_ns = self._now_ns()

    def set_back(self, file: str | int) -> None:
        """Read before it was written."""
        found = self._held[file] if isinstance(file, int) else self._find(file)
        self._answer("")
        found.read_ns = found.written_ns - BACK_NS

    def hold(self, path: str) -> int:
        """Found by this number whatever becomes of its name."""
        number = next(self._numbers)
        self._held[number] = self._find(path)
        return number

    def held(self, number: int) -> FileFacts:
        """Facts of a held file."""
        self._answer("")
        return _facts(self._held[number])

    def peek(self, number: int) -> None:
        """As a read."""
        self._answer("")
        self._note_read(self._held[number])

    def let_go(self, number: int) -> None:
        """Let go of a held file; KeyError for any other."""
        del self._held[number]

    @property
    def holds(self) -> int:
        """How many files are held: none, when no process runs."""
        return len(self._held)

    # ------------------------------------------------------------------

    def _find(self, path: str) -> _File:
        self._answer(path)
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._files[path]

    def _answer(self, path: str) -> None:
        if self.gone or (self.flaky is not None and self.flaky.random() < 0.5):
            self.missed()
            raise OSError(errno.ESTALE, "stale file handle", path)

    def _note_read(self, file: _File) -> None:
        now_ns = self._now_ns()
        if self._notes_reads and (file.read_ns <= file.written_ns or now_ns - file.read_ns > DAY_NS):
            file.read_ns = now_ns

    def _now_ns(self) -> int:
        return int(self._unix_s() * NS)


def _facts(file: _File) -> FileFacts:
    return FileFacts(len(file.data), file.written_ns, file.read_ns, is_regular=True)
