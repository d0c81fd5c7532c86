"""What workers print: one file per process, and an index of who was which rank from where on.

A rank is an office that workers hold one after the other, so the output of a rank is a list of parts of their files.
The index is a file of its own beside them, `ranks.jsonl`: what was printed before a restart of the controller is found
after it. Before there was an index, files were called `rank-N.log`; they are the first part of what that rank printed.
A file that grows too long begins anew (`output_keeper`), and with it what is known of the ranks of its worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sublet.errors import UnknownName
from sublet.runtime.controller.long_output import MOST_BYTES

__all__ = ["LogPart", "WorkerLogs"]

INDEX = "ranks.jsonl"
ALL = 1 << 62  # bytes: nothing more is wanted
_WORKER = re.compile(r"[^/\0]+\.\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A piece of one worker's output: bytes `start` to `end` (None = all that comes) of a file."""

    path: str
    rank: int
    worker_id: str = ""  # "" = written before workers had files of their own
    node_id: str = ""
    start: int = 0
    end: int | None = None
    ended: str = ""  # how the process ended, if not as it was told to: `exit code 3`, `SIGKILL`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """From byte `start` on, what `worker` prints is the output of `rank`."""

    worker: str
    node: str
    rank: int
    start: int = 0
    launch: bool = False  # a rank for the time being: the first group that it belongs to says which it has
    ended: str = ""  # its process ended like this; says nothing of ranks
    ordered: bool = False  # it was told to take this rank; the next entry of it, if any, says from where it had it
    anew: bool = False  # its file begins anew: nothing before this is in it


class WorkerLogs:
    """The output of one job, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: list[_Entry] | None = None  # None = not read yet
        self._rank: dict[str, int] = {}  # worker -> the last that was agreed on
        self._ended: dict[str, str] = {}  # worker -> how its process ended
        self._ordered: dict[str, tuple[int, _Entry]] = {}  # worker -> (generation, the rank that it is to take there)

    def path(self, worker_id: str) -> Path:
        """The file of one worker process."""
        return self.folder / f"{worker_id}.log"

    def take(self, worker_id: str, offset: int, data: bytes) -> int | None:
        """What a worker on another machine has printed from `offset` on: how much of it is here then. None: not now."""
        if not _WORKER.fullmatch(worker_id):
            return None
        path = self.path(worker_id)
        size = _size(path)
        if size >= MOST_BYTES:
            return ALL
        new = data[size - offset :] if offset <= size else b""
        if size + len(new) >= MOST_BYTES:
            new = new[: MOST_BYTES - size] + b"\n(longer than 64 MiB: the rest is on its node)\n"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                size += os.write(file, new)
            finally:
                os.close(file)
        except OSError:  # no room: it is sent again
            return None
        return ALL if size >= MOST_BYTES else size

    def begin_anew(self, worker_id: str) -> None:
        """Its file was too long, and begins anew: ranks that were noted before are those of what is gone."""
        entries = (entry for entry in reversed(self._entries()) if entry.worker == worker_id and not entry.ended)
        last = next(entries, None)
        if last is None:
            return
        known = worker_id in self._rank
        rank = self._rank[worker_id] if known else last.rank
        generation, ordered = self._ordered.get(worker_id, (0, None))
        self._add(_Entry(worker=worker_id, node=last.node, rank=rank, launch=not known, anew=True))
        if ordered is not None:
            self._ordered[worker_id] = (generation, replace(ordered, start=0))

    def add_launch(self, worker_id: str, node_id: str, rank: int) -> None:
        """A worker is started; what it prints before its first group counts as that of `rank` until then."""
        if not any(entry.worker == worker_id for entry in self._entries()):
            self._add(_Entry(worker=worker_id, node=node_id, rank=rank, launch=True))

    def add_order(self, worker_id: str, node_id: str, rank: int, generation: int) -> None:
        """A group was agreed on, and this is its rank there: from when it joins, because it may train on until then."""
        self.settle(worker_id)
        self._entries()
        if worker_id not in self._rank or self._rank[worker_id] == rank:
            self.set_rank(worker_id, node_id, rank)
            return
        start = _size(self.path(worker_id))
        entry = _Entry(worker=worker_id, node=node_id, rank=rank, start=start, ordered=True)
        self._ordered[worker_id] = (generation, entry)
        self._write(entry)

    def confirm_join(self, worker_id: str, generation: int, printed: int) -> None:
        """It has its rank; it had printed so much by then (-1: it does not know)."""
        if worker_id in self._ordered and self._ordered[worker_id][0] == generation:
            self.settle(worker_id, printed)

    def settle(self, worker_id: str, printed: int = -1) -> None:
        """The rank that it was told to take is its own, from `printed` on or, without, from the order on."""
        _, entry = self._ordered.pop(worker_id, (0, None))
        if entry is not None:
            start = max(entry.start, min(printed, _size(self.path(worker_id))))
            self._add(replace(entry, start=start, ordered=False))

    def set_rank(self, worker_id: str, node_id: str, rank: int) -> None:
        """This is its rank from here on."""
        self._entries()
        if self._rank.get(worker_id) == rank:
            return
        start = _size(self.path(worker_id)) if worker_id in self._rank else 0
        self._add(_Entry(worker=worker_id, node=node_id, rank=rank, start=start))

    def add_end(self, worker_id: str, how: str) -> None:
        """Its process ended, and not as it was told to."""
        self._add(_Entry(worker=worker_id, node="", rank=-1, ended=how))

    def parts(self, *, rank: int | None = None, worker_id: str = "") -> tuple[LogPart, ...]:
        """What one rank printed, or one worker, or (with neither) every worker, in order of time."""
        entries = [entry for entry in self._entries() if not entry.ended]
        agreed = [entry for entry in entries if not (entry.launch and entry.worker in self._rank)]
        if rank is not None:
            return (*self._of_old(f"rank-{rank}.log"), *(part for part in self._cut(agreed) if part.rank == rank))
        last = {entry.worker: entry for entry in agreed}
        if worker_id and worker_id not in last:
            raise UnknownName("worker", worker_id, list(last))
        whole = [self._part(entry) for entry in last.values()]
        if worker_id:
            return tuple(part for part in whole if part.worker_id == worker_id)
        return (*self._of_old("rank-*.log"), *whole)

    def _cut(self, entries: Iterable[_Entry]) -> list[LogPart]:
        """Each part ends where the same worker takes another rank."""
        parts: list[LogPart] = []
        ends: dict[str, int] = {}
        for entry in reversed(list(entries)):
            parts.append(self._part(entry, start=entry.start, end=ends.get(entry.worker)))
            ends[entry.worker] = entry.start
        return parts[::-1]

    def _part(self, entry: _Entry, *, start: int = 0, end: int | None = None) -> LogPart:
        return LogPart(
            path=str(self.path(entry.worker)),
            worker_id=entry.worker,
            node_id=entry.node,
            rank=entry.rank,
            start=start,
            end=end,
            ended=self._ended.get(entry.worker, "") if end is None else "",
        )

    def _of_old(self, pattern: str) -> Iterable[LogPart]:
        for path in sorted(self.folder.glob(pattern)):
            number = path.stem.removeprefix("rank-")
            if number.isdigit():
                yield LogPart(path=str(path), rank=int(number))

    # ------------------------------------------------------------------ the index

    def _entries(self) -> list[_Entry]:
        if self._known is None:
            self._known = []
            with contextlib.suppress(OSError):
                for line in (self.folder / INDEX).read_text(encoding="utf-8").splitlines():
                    with contextlib.suppress(ValueError, TypeError):  # a line that a crash has torn
                        self._remember(_Entry(**json.loads(line)))
        return self._known

    def _remember(self, entry: _Entry) -> None:
        if self._known is not None:
            if entry.anew:
                self._known = [each for each in self._known if each.worker != entry.worker]
            before = next(
                (at for at in reversed(range(len(self._known))) if self._known[at].worker == entry.worker), -1
            )
            if before >= 0 and self._known[before].ordered and not entry.ended:
                del self._known[before]  # this one says it better
            self._known.append(entry)
        if entry.ended:
            self._ended[entry.worker] = entry.ended
        elif not entry.launch:
            self._rank[entry.worker] = entry.rank

    def _add(self, entry: _Entry) -> None:
        self._entries()
        self._remember(entry)
        self._write(entry)

    def _write(self, entry: _Entry) -> None:
        line = f"{json.dumps(asdict(entry))}\n".encode()
        with contextlib.suppress(OSError):  # a full disk costs the index, never the job
            index = os.open(self.folder / INDEX, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(index, line)
            finally:
                os.close(index)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
