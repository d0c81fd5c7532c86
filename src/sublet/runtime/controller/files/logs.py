"""The output of jobs: one file per process, an index of ranks, and bounds on what is kept.

A rank is an office that workers hold one after the other, so the output of a rank is a list of parts of their files.
The index is a file of its own beside them, `ranks.jsonl`: what was printed before a restart of the controller is found
after it. Before there was an index, files were called `rank-N.log`; they are the first part of what that rank printed.

Of each file the end is kept, and of a job no more than so much. A file that grows too long begins anew, and with it
what is known of the ranks of its worker. Threads see to that: gigabytes are copied and dropped, and the loop goes on.
They look at folders, not at workers: one whose node was lost may print on, and no group knows it any more. Several
files are cut at once: while one is cut its own writer waits, but those of all others print on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sublet.errors import UnknownName
from sublet.runtime.controller.memory import JobRecord
from sublet.runtime.group.failures import ending_of
from sublet.runtime.group.workers import WorkerPhase
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_LEFT

MOST_BYTES = 64 << 20  # of one worker; as many of what came before lie beside it
MOST_OF_JOB = 512 << 20  # of all workers that a job ever had
SLACK = 4_096  # a note that it was longer
CHUNK = 1 << 20


def before(path: Path) -> Path:
    """Where the end of what was cut off lies: a log as well, so that secrets are starred out there too."""
    return path.with_name(f"{path.name.removesuffix('.log')}.before.log")


def is_before(path: Path) -> bool:
    """Whether it is such an end, which no worker writes on."""
    return path.name.endswith(".before.log")


def cut_log(path: Path, most: int = MOST_BYTES) -> bool:
    """Whether it was too long: then it begins anew, and its last bytes lie beside it. Its writers append."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size <= most + SLACK:
            return False
        end = _end_of(file, facts.st_size, most)
        os.ftruncate(file, 0)  # first: it makes room, and a fast writer gets no further while its end is written
        with contextlib.suppress(OSError):  # no room: it is lost
            _write(before(path), end)
        note = f"(longer than {most >> 20} MiB: the rest of what came before lies in {before(path).name})\n"
        with contextlib.suppress(OSError):
            os.write(file, note.encode())
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def keep_below(folder: Path, alive: Collection[Path], most: int = MOST_OF_JOB) -> None:
    """Remove the oldest logs of a folder, but of those `alive`, until all are below so many bytes."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.glob("*.log"):
            facts = path.lstat()
            found.append((facts.st_mtime_ns, path, facts.st_size))
    total = sum(size for _, _, size in found)
    for _, path, size in sorted(found):
        if total <= most:
            return
        if path not in alive:
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _end_of(file: int, size: int, most: int) -> memoryview:
    """From the begin of a line on, where there is one: half a secret would not be masked."""
    end, at = bytearray(), size - most
    while at < size and (data := os.pread(file, min(CHUNK, size - at), at)):
        end += data
        at += len(data)
    return memoryview(end)[end.find(b"\n", 0, CHUNK) + 1 :]


def _write(path: Path, data: memoryview) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            data = data[os.write(file, data[:CHUNK]) :]
    finally:
        os.close(file)


LOOK_S = 0.25
AGAIN_S = 0.02  # after a look that found something too long: its writer is faster than most
AT_ONCE = 2  # files that are cut: the end of each is in memory meanwhile
LAST_S = 60.0  # a job that has ended is looked at for so long after it last printed: lost nodes have workers yet

_log = logging.getLogger("sublet.controller")


class LogKeeper:
    """`folders`: of each job that lives, and which of its workers may be printing. `cut`: files that began anew."""

    def __init__(self) -> None:
        self.most, self.most_of_job = MOST_BYTES, MOST_OF_JOB
        self.folders: Mapping[Path, Collection[str]] = {}  # replaced, never changed: the thread reads it
        self.cut: deque[Path] = deque()
        self._left_s: dict[Path, float] = {}  # folder -> for how long it is looked at
        self._sizes: dict[Path, dict[Path, int]] = {}  # as of the last look
        self._cutting: dict[Path, Future[None]] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="logs")
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Look from now on; again where it does so already: nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="logs", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Look no more; a look that is under way is brought to its end."""
        self._over.set()

    def look_last(self) -> None:
        """After `end`, once no worker prints any more."""
        if self._thread is not None:
            self._thread.join()
            self.look_all()

    def look_all(self) -> None:
        """Look, and once more when what was too long is cut."""
        wait(self._cutting.values())
        self.look()
        wait(self._cutting.values())
        self.look()

    def look(self, passed_s: float = LOOK_S) -> bool:
        """At everything once, so long after the last time: whether something is too long, and being cut."""
        self._cutting = {path: cutting for path, cutting in self._cutting.items() if not cutting.done()}
        folders = self.folders
        for folder in folders:
            self._left_s[folder] = LAST_S
        long = False
        for folder in list(self._left_s):
            long |= self._look_at(folder, folders.get(folder, ()), passed_s)
            if folder not in folders and self._left_s[folder] <= 0:
                del self._left_s[folder]
                self._sizes.pop(folder, None)
        return long

    def _look_at(self, folder: Path, alive: Collection[str], passed_s: float) -> bool:
        sizes = _sizes(folder)
        old = self._sizes.get(folder, {})
        grown = {path for path, size in sizes.items() if size != old.get(path)}
        self._left_s[folder] = LAST_S if grown else self._left_s[folder] - passed_s
        long = [path for path, size in sizes.items() if size > self.most + SLACK and not is_before(path)]
        for path in long:
            if path not in self._cutting:
                self._cutting[path] = self._pool.submit(self._cut, path)
        if not long and sum(sizes.values()) > self.most_of_job:
            # A file that is removed while it is printed on would grow unseen. No worker prints on an end.
            printing = {path for path in grown if not is_before(path)}
            keep_below(folder, printing | {folder / f"{worker_id}.log" for worker_id in alive}, self.most_of_job)
        self._sizes[folder] = sizes
        return bool(long)

    def _cut(self, path: Path) -> None:
        if cut_log(path, self.most):
            self.cut.append(path)

    def _keep(self) -> None:
        pause_s = LOOK_S
        while not self._over.wait(pause_s):
            try:
                pause_s = AGAIN_S if self.look(pause_s) else LOOK_S
            except Exception:  # noqa: BLE001 - what cannot be kept now is kept another time
                _log.exception("a look at what jobs print failed")
                pause_s = LOOK_S


def _sizes(folder: Path) -> dict[Path, int]:
    sizes = {}
    try:
        for path in folder.glob("*.log"):
            facts = path.lstat()
            if stat.S_ISREG(facts.st_mode):
                sizes[path] = facts.st_size
    except OSError:  # one went in this moment: the next look finds the others
        pass
    return sizes


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
        """Output of a worker on another machine, from `offset` on: how much of it is here then. None: not now."""
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
        """Output of one rank, or one worker, or (with neither) every worker, in order of time."""
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


class JobLogs:
    """The output of every job, below a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._logs: dict[str, WorkerLogs] = {}
        self.keeper = LogKeeper()

    def of(self, job_id: str) -> WorkerLogs:
        """Output of its workers."""
        self._hear_cuts()
        return self._of(job_id)

    def _of(self, job_id: str) -> WorkerLogs:
        if job_id not in self._logs:
            self._logs[job_id] = WorkerLogs(self._state_dir / "jobs" / job_id / "logs")
        return self._logs[job_id]

    def keep_bounds(self, records: Iterable[JobRecord]) -> None:
        """Output of these jobs does not fill the disk: a thread sees to that, and is not waited for."""
        self.keeper.folders = {self._of(each.id).folder: tuple(each.group.workers) for each in records}
        self._hear_cuts()
        if self.keeper.folders:
            self.keeper.begin()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it bounds are kept."""
        try:
            yield
        finally:
            self.keeper.end()

    def _hear_cuts(self) -> None:
        while self.keeper.cut:
            path = self.keeper.cut.popleft()
            self._of(path.parent.parent.name).begin_anew(path.stem)

    def note_rank(self, record: JobRecord, node_id: str, message: wire.ToAgent) -> None:
        """The worker whose output is that of a rank from now on, if this message to an agent says so."""
        logs = self.of(record.id)
        if isinstance(message, wire.StartWorker):
            worker = record.group.workers.get(message.worker_id)  # None: its node went in the same moment
            logs.add_launch(message.worker_id, node_id, 0 if worker is None else worker.rank)
        elif isinstance(message, wire.Regroup):
            logs.add_order(message.worker_id, node_id, message.rank, message.generation)

    def note_end(self, record: JobRecord, message: wire.WorkerDown) -> None:
        """How a worker ended that was not told to."""
        logs = self.of(record.id)
        logs.settle(message.worker_id)
        worker = record.group.workers.get(message.worker_id)
        told = worker is None or worker.phase is WorkerPhase.LEAVING
        if not told and message.code not in (0, EXIT_LEFT):
            logs.add_end(message.worker_id, ending_of(message.code))
