"""The steps between the order to start a worker and its process: its files are fetched, its setup is run.

The process that workers are copies of may still be importing: no worker begins before it is done.

Workers that wait here count as the node's own: a controller that comes back hears of them, and may end them.

A working directory on a node, made of parts: one per job, shared by its workers there, and used when it is whole.
Scripts write into their working directory, so nothing in it is a link to what we keep; a worker that starts again finds
there what the one before it has left, as on a disk that all share.

One piece of each worker is under way at a time, so that nothing else on the line is late by more; what was not answered
is sent again. The last of it goes ahead of the news of the worker's end.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sublet.machine.files import Files
from sublet.machine.wall import Wall
from sublet.runtime.agent.crew import Crew
from sublet.runtime.agent.disk import Disk
from sublet.runtime.agent.interpreter import is_environment
from sublet.runtime.agent.keeping import Keeping
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.outside import NOT_THERE, Outside, is_outside
from sublet.runtime.agent.setups import Setups, dressed, key_of
from sublet.runtime.agent.users import Acting, as_we_are
from sublet.runtime.agent.worker import why_not_started
from sublet.runtime.file_sync.content import Content, Entry, Fetching
from sublet.wire.files import Kept, Lacks, Part, Preparing, Printed, Travel
from sublet.wire.messages import EXIT_LOST, StartWorker

PIECE_BYTES = 64 << 10
LAST_PIECES = 16  # of a worker that ends, without waiting for an answer
LOOK_S = 0.5
AGAIN_S = 10.0  # without an answer
MOST_ENDED = 64  # workers that have ended whose last words are still to be sent


@dataclass(slots=True)
class _Stream:
    path: str
    kept: int = 0  # bytes, at the controller
    sent: int = 0  # ... and on their way there
    sent_s: float = 0.0  # when the last piece went
    ended: bool = False


class LogStreams:
    """The log streams of one node."""

    def __init__(self, disk: Disk, wall: Wall, say: Callable[[Printed], None]) -> None:
        self._disk, self._wall, self._say = disk, wall, say
        self._streams: dict[str, _Stream] = {}
        self._look_s = float("inf")

    def add(self, worker_id: str, path: str) -> None:
        """From now on."""
        self._streams[worker_id] = _Stream(path)
        self._look_s = min(self._look_s, self._wall.monotonic() + LOOK_S)

    def finish(self, worker_id: str) -> None:
        """It has ended, or is about to say something that its output comes before."""
        if (stream := self._streams.get(worker_id)) is None:
            return
        at = stream.kept
        for _ in range(LAST_PIECES):
            if not (data := self._piece(stream, at)):
                break
            self._send(worker_id, stream, at, data)
            at += len(data)

    def let_go(self, worker_id: str) -> None:
        """It has ended: nothing comes after what there is."""
        self.finish(worker_id)
        if (stream := self._streams.get(worker_id)) is not None:
            stream.ended = True
            ended = [each for each, other in self._streams.items() if other.ended]
            for each in ended[:-MOST_ENDED]:
                del self._streams[each]

    def note_kept(self, message: Kept) -> None:
        """The controller has so much."""
        if (stream := self._streams.get(message.worker_id)) is not None:
            stream.kept = message.offset
            if stream.kept >= stream.sent:
                self._send_next(message.worker_id, stream)

    def send_again(self) -> None:
        """The line is a new one."""
        for worker_id, stream in list(self._streams.items()):
            self._send_next(worker_id, stream)

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return self._look_s

    def keep_time(self, now_s: float) -> None:
        """Look for what is new."""
        if now_s < self._look_s:
            return
        for worker_id, stream in list(self._streams.items()):
            if stream.kept >= stream.sent or now_s - stream.sent_s > AGAIN_S:
                self._send_next(worker_id, stream)
        self._look_s = now_s + LOOK_S if self._streams else float("inf")

    def _send_next(self, worker_id: str, stream: _Stream) -> None:
        if data := self._piece(stream, stream.kept):
            self._send(worker_id, stream, stream.kept, data)
        elif stream.ended:
            del self._streams[worker_id]

    def _send(self, worker_id: str, stream: _Stream, at: int, data: bytes) -> None:
        stream.sent, stream.sent_s = at + len(data), self._wall.monotonic()
        self._say(Printed(worker_id=worker_id, offset=at, data=base64.b64encode(data).decode()))

    def _piece(self, stream: _Stream, at: int) -> bytes:
        try:
            return self._disk.piece(stream.path, since_bytes=at, most_bytes=PIECE_BYTES)
        except OSError:
            return b""  # it has printed nothing yet


AT_ONCE = 4 << 20  # bytes of files, before the agent looks at its lines again
TELL_S = 5.0  # that a worker is being prepared, so that it is not waited for in vain
HOME = "HOME"
ENDED = -9  # of one that was ended before it began
Say = Callable[[Lacks | Printed | Preparing], None]


class _Lost(Exception):
    """A part was here, and is gone."""


class Tree:
    """The files of one manifest below `place`; those of paths with ~/ below `home`.

    `give` makes the place the job's own; all of it is written `acting` as the owner of the place.
    """

    def __init__(
        self,
        place: Path,
        entries: Sequence[Entry],
        content: Content,
        files: Files,
        home: Path,
        *,
        give: Callable[[Path], None] = lambda _: None,
        acting: Acting = as_we_are,
    ) -> None:
        self.place, self._content, self._files, self._home = place, content, files, home
        self._give, self._acting = give, acting
        self._mark = place.with_name(place.name + ".whole")  # written last
        self._work: Iterator[int] = self._built(entries)
        self.whole = False

    def work(self) -> bool:
        """Put some more files there; whether all are. OSError where they cannot be, Lost as it says."""
        done = 0
        for size in self._work:
            done += size
            if done >= AT_ONCE:
                return False
        self.whole = True
        return True

    def _built(self, entries: Sequence[Entry]) -> Iterator[int]:
        if self._is_marked():
            return
        self._files.make_folder(self.place)
        self._give(self.place)
        folders: set[Path] = set()
        for entry in entries:
            path, data = self.place / self._at_home(entry.path), self.data_of(entry)
            try:
                with self._acting(str(self.place)):
                    if path.parent not in folders:
                        self._files.make_folder(path.parent)
                        folders.add(path.parent)
                    self._files.write(path, data, mode=entry.mode, durable=False)
            except PermissionError as error:
                raise PermissionError(error.errno, NOT_THERE, str(path)) from None
            yield entry.size_bytes
        self._files.write(self._mark, b"", durable=False)

    def _at_home(self, path: str) -> Path:
        first, *rest = Path(path).parts
        return self._home.joinpath(*rest) if first == "~" else Path(path)

    def _is_marked(self) -> bool:
        try:
            self._files.read(self._mark)
        except OSError:
            return False
        return True

    def data_of(self, entry: Entry) -> bytes:
        """Its bytes; Lost as above."""
        return b"".join(map(self._part, entry.parts))

    def _part(self, digest: str) -> bytes:
        if (data := self._content.data(digest)) is None:
            raise _Lost(digest)
        return data


@dataclass(slots=True)
class _WaitingJob:
    """A worker that is to start: `order` as it came, with the paths of this node once they are known."""

    order: StartWorker
    travel: Travel
    node_env: Mapping[str, str]
    host: str
    mounting: Iterator[int] | None = None  # what is put outside of its folder
    placed: bool = False  # its paths are those of this node, and its files are there


class Preparations:
    """In `folder`. A worker that needs nothing starts at once; others are `waiting` until they can, or cannot."""

    def __init__(self, folder: Path, machine: Machine, crew: Crew, say: Say, keeping: Keeping) -> None:
        self._folder, self._machine, self._crew, self._say, self._keeping = folder, machine, crew, say, keeping
        self._content = Content(folder / "content", machine.files)
        self._fetching = Fetching(self._content, say, machine.wall)
        self._trees: dict[tuple[str, str], Tree] = {}  # by job and code
        self._outside = Outside(folder, machine.files, machine.disk, self._runs)
        self._setups = Setups(machine)
        self.logs = LogStreams(machine.disk, machine.wall, say)
        self.waiting: dict[str, _WaitingJob] = {}
        self._built = 0  # pieces of work on trees, ever
        self._tell_s, self._told = 0.0, -1  # when to say it next, and how far all had come when it was said

    # ------------------------------------------------------------------ orders

    def start(self, order: StartWorker, node_env: Mapping[str, str], host: str) -> None:
        """At once, or when all that it needs is there."""
        if order.worker_id in self.waiting or self._crew.knows(order.worker_id):
            return  # the order was said twice
        if order.travel is None and self._machine.warm():
            self._crew.start(order, node_env, host)
            return
        travel = order.travel or Travel()
        if travel.carries and not self._shares_place(travel):
            order = self._keeping.adopt(order)
        if not self.waiting:
            self._tell_s = self._machine.wall.monotonic()
        waiting = self.waiting[order.worker_id] = _WaitingJob(order, travel, node_env, host)
        if self._shares_disk(travel):
            shared = not travel.witness or is_environment(order.python)  # of another machine is the system's own
            waiting.order, waiting.placed = replace(order, travel=None, python=order.python if shared else ""), True
        elif not travel.code:
            try:
                self._put_in(waiting, order.cwd)
            except OSError as error:
                self._fail(order.worker_id, why_not_started(error), f"cannot start: {error}")
        self._proceed()

    def drop(self, worker_id: str) -> None:
        """It is not to start any more."""
        if self.waiting.pop(worker_id, None) is not None:
            self._crew.never_began(worker_id, ENDED, "")
            self._forget_unwanted()

    def drop_all(self) -> None:
        """Drop all."""
        for worker_id in list(self.waiting):
            self.drop(worker_id)

    # ------------------------------------------------------------------ news

    def hear(self, message: Part | Kept) -> None:
        """From the controller."""
        if isinstance(message, Kept):
            self.logs.note_kept(message)
            return
        try:
            self._fetching.take(message)
        except OSError as error:
            self._fail_all(error)
        self._keeping.hear(message)
        self._proceed()

    def go_on(self) -> None:
        """A missing file may have come."""
        self._proceed()

    def line_is_new(self) -> None:
        """Messages on the old line may not have arrived."""
        self._fetching.ask_again()
        self.logs.send_again()

    def ended(self, pid: int, code: int) -> None:
        """A process that is no worker."""
        if (end := self._setups.ended(pid, code)) is None:
            return
        if end.code:
            for worker_id, waiting in list(self.waiting.items()):
                if waiting.placed and key_of(waiting.order, waiting.travel) == end.key:
                    self._fail(worker_id, end.code, end.why)
        self._proceed()

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        works = any(not tree.whole for tree in self._trees.values())
        works = works or any(each.mounting is not None and not each.placed for each in self.waiting.values())
        return min(
            float("-inf") if works else float("inf"),
            self._tell_s if self.waiting else float("inf"),
            self._fetching.due_s(),
            self._setups.due_s(),
            self.logs.due_s(),
        )

    def keep_time(self, now_s: float) -> None:
        """Ask again, go on with what is put together, and name the workers in preparation."""
        self._fetching.keep_time(now_s)
        self._setups.keep_time(now_s)
        self.logs.keep_time(now_s)
        if self.waiting:
            self._proceed()
        if self.waiting and now_s >= self._tell_s:
            self._tell_s = now_s + TELL_S
            moves, self._told = self._done > self._told, self._done
            for waiting in self.waiting.values():
                if moves or waiting.placed:  # a setup has a limit of its own
                    self._say(Preparing(worker_id=waiting.order.worker_id, what=self._doing(waiting)))

    @property
    def _done(self) -> int:
        """Parts that came and files that were put in place: more of them, or nothing moves."""
        return self._fetching.came + self._built

    # ------------------------------------------------------------------ from step to step

    def _proceed(self) -> None:
        """Each as far as it gets now."""
        worked = False
        for worker_id, waiting in list(self.waiting.items()):
            try:
                if not waiting.placed:
                    worked = self._place(waiting, may_work=not worked) or worked
                here = waiting.placed and self._keeping.is_here(waiting.order) and self._machine.warm()
                if here and self._setups.is_done(waiting.order, waiting.travel, waiting.node_env):
                    del self.waiting[worker_id]
                    order = replace(waiting.order, python=self._setups.python(waiting.order, waiting.travel))
                    order = dressed(self._keeping.with_resume(order), waiting.travel)
                    self._crew.start(order, waiting.node_env, waiting.host)
            except OSError as error:
                self._fail(worker_id, why_not_started(error), f"cannot start: {error}")

    def _place(self, waiting: _WaitingJob, *, may_work: bool) -> bool:
        """Its files, which are not here as they are at the controller; whether that took some time."""
        order, travel = waiting.order, waiting.travel
        fetch, key = self._fetching.of(travel.code), (order.job_id, travel.code)
        if fetch.why_not:
            self._fail(order.worker_id, EXIT_LOST, f"cannot start: {fetch.why_not}")
            return False
        if not fetch.here or fetch.entries is None:
            return False
        if key not in self._trees:
            place = self._folder / "work" / f"{order.job_id}-{travel.code[:16]}"
            self._trees[key] = self._tree(order.job_id, place, fetch.entries, travel)
        tree = self._trees[key]
        try:
            if not tree.whole:
                self._built += may_work
                if not (may_work and tree.work()):
                    return may_work
            if not self._mount(waiting, tree, fetch.entries):
                return True
        except _Lost:
            del self._trees[key]
            waiting.mounting = None
            fetch.look()
            self._fetching.ask_again()
            return True
        except OSError:
            del self._trees[key]
            raise
        self._put_in(waiting, str(tree.place))
        return True

    def _mount(self, waiting: _WaitingJob, tree: Tree, entries: Sequence[Entry]) -> bool:
        """Some more of what lies outside of its folder, before each start; whether all of it is there."""
        if waiting.mounting is None:
            there = [entry for entry in entries if is_outside(entry)]
            place = str(tree.place)
            waiting.mounting = self._outside.put(waiting.order.job_id, there, tree.data_of, self._machine.acting, place)
        done = 0
        for size in waiting.mounting:
            done += size
            self._built += 1
            if done >= AT_ONCE:
                return False
        return True

    def _runs(self, job_id: str) -> bool:
        waits = any(each.order.job_id == job_id for each in self.waiting.values())
        return waits or any(worker.job_id == job_id for worker in self._crew.workers.values())

    def _tree(self, job_id: str, place: Path, entries: Sequence[Entry], travel: Travel) -> Tree:
        machine = self._machine
        mounted = (*travel.seen, *(entry.path for entry in entries if entry.path.startswith("~")))
        return Tree(
            place,
            [entry for entry in entries if not is_outside(entry)],
            self._content,
            machine.files,
            machine.home(job_id, str(place), mounted),
            give=lambda folder: machine.give(job_id, str(folder)),
            acting=machine.acting,
        )

    def _put_in(self, waiting: _WaitingJob, place: str) -> None:
        """It works there, with a home of its job's, and its output has to be sent."""
        home = self._machine.home(waiting.order.job_id, place, waiting.travel.seen)
        if HOME not in waiting.order.env:
            waiting.node_env = {**waiting.node_env, HOME: str(home)}
        waiting.order, waiting.placed = self._moved(waiting.order, place), True
        self.logs.add(waiting.order.worker_id, waiting.order.log)

    def _moved(self, order: StartWorker, place: str) -> StartWorker:
        """With the paths of this node."""
        old = order.cwd.rstrip("/") + "/"
        argv = tuple(f"{place}/{word.removeprefix(old)}" if word.startswith(old) else word for word in order.argv)
        log = str(self._folder / "logs" / f"{order.worker_id}.log")
        # What was brought there has the times of that: which file is the job's own work is not seen.
        return replace(order, argv=argv, cwd=place, log=log, travel=None, python="", began_ago_s=None)

    def _shares_disk(self, travel: Travel) -> bool:
        if not travel.witness and not travel.code:
            return True
        try:
            return bool(travel.words) and self._machine.files.read(Path(travel.witness)) == travel.words.encode()
        except OSError:
            return False

    def _shares_place(self, travel: Travel) -> bool:
        """The directory that its job has named is the controller's own, on any disk."""
        try:
            return bool(travel.shared) and bool(self._machine.disk.facts(travel.shared))
        except OSError:
            return False

    def _doing(self, waiting: _WaitingJob) -> str:
        if waiting.placed:
            if self._keeping.brings(waiting.order.worker_id):
                return "its checkpoint is brought"
            return "its setup runs" if self._machine.warm() else "its libraries are imported"
        missing = sum(self._fetching.of(waiting.travel.code).missing.values())
        return f"{missing / (1 << 20):.1f} MiB of its files are to come" if missing else "its files are put together"

    def _fail_all(self, error: OSError) -> None:
        for worker_id, waiting in list(self.waiting.items()):
            if not waiting.placed:
                self._fail(worker_id, why_not_started(error), f"cannot start: {error}")

    def _fail(self, worker_id: str, code: int, why: str) -> None:
        del self.waiting[worker_id]
        self._crew.never_began(worker_id, code, why)
        self._forget_unwanted()

    def _forget_unwanted(self) -> None:
        """Files that are not waited for are not fetched, put together or run any further."""
        codes = {waiting.travel.code for waiting in self.waiting.values()}
        self._fetching.keep_only(codes)
        self._trees = {key: tree for key, tree in self._trees.items() if tree.whole or key[1] in codes}
        self._setups.end_unwanted([key_of(each.order, each.travel) for each in self.waiting.values()])
