"""The newest checkpoint of a job, brought to a node before a worker goes on from it: only what the node lacks is sent.

It is put together beside and renamed, so that a worker finds all of it or none. A newer checkpoint on the node's own
disk counts only if no other worker has gone on with the job since it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sublet.errors import BadInput
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.snapshots import AT_ONCE, files_in, steps_in
from sublet.runtime.file_sync.content import Content, Entry, Fetch, Fetching, Keep, digest_of, is_below
from sublet.wire.saves import Newest, Wants
from sublet.wire.travel import Lacks, Part

__all__ = ["Restoring"]

AGAIN_S = 10.0  # without an answer: ask again
UNANSWERED_S = 300.0  # ... and give up
UNDER_WAY_BYTES = 4 << 20  # asked for and not here yet: orders go before them
WORKED, WAITS = True, False
Place = tuple[str, int, int]  # where a part is on this node: in which file, from which byte on, at most so many


@dataclass(slots=True)
class _Bringing:
    """Files that are brought to `folder`, for a worker."""

    wants: Wants
    folder: Path
    own: Callable[[], int] | None  # of a folder that is brought as a whole: whose writings are in it; None = of steps
    since_s: float
    asked_s: float = 0.0
    step: int = -1  # that is here, in the end
    newest: Newest | None = None  # None = the controller has not said yet
    work: Iterator[bool] = field(default_factory=lambda: iter(()))
    worked: bool = WORKED


class Restoring:
    """The restorer of one node; parts are kept in `folder` on the way.

    `done` hears of each worker which step is here (-1: what was here before), or why it cannot go on.
    """

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        say: Callable[[Wants | Lacks], None],
        done: Callable[[Wants, int, str], None],
    ) -> None:
        self._machine, self._say, self._done = machine, say, done
        self._content = Content(folder, machine.files, Keep.PASSING)
        self._fetching = Fetching(self._content, say, machine.wall, most_bytes=UNDER_WAY_BYTES)
        self._by_worker: dict[str, _Bringing] = {}

    def is_wanted(self, worker_id: str) -> bool:
        """By this worker."""
        return worker_id in self._by_worker

    def want(self, wants: Wants, folder: str, own: Callable[[], int] | None = None) -> None:
        """The newest is to be there before this worker goes on.

        For a script it is the whole folder, unless it is `own`: the generation of the last writer here.
        """
        now_s = self._machine.wall.monotonic()
        bringing = self._by_worker[wants.worker_id] = _Bringing(wants, Path(folder), own, now_s)
        bringing.work = self._bring(bringing)
        self._ask(bringing)

    def forget(self, worker_id: str) -> None:
        """It has ended."""
        if self._by_worker.pop(worker_id, None) is not None:
            self._tidy()

    # ------------------------------------------------------------------ news

    def hear(self, message: Newest | Part) -> None:
        """From the controller."""
        if isinstance(message, Part):
            try:
                self._fetching.take(message)
            except OSError as error:
                for worker_id, each in list(self._by_worker.items()):
                    self._end(worker_id, each, f"the newest checkpoint cannot be kept: {error}")
        elif (bringing := self._by_worker.get(message.worker_id)) is not None and bringing.newest is None:
            bringing.newest = message
        self._proceed()

    def line_is_new(self) -> None:
        """Requests on the old line may not have arrived."""
        for bringing in self._by_worker.values():
            if bringing.newest is None:
                bringing.since_s = self._machine.wall.monotonic()
                self._ask(bringing)
        self._fetching.ask_again()

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        due_s = self._fetching.due_s()
        for bringing in self._by_worker.values():
            if bringing.worked is WORKED:
                return float("-inf")
            if bringing.newest is None:
                due_s = min(due_s, bringing.asked_s + AGAIN_S)
        return due_s

    def keep_time(self, now_s: float) -> None:
        """Ask again, and go on with what is put together."""
        self._fetching.keep_time(now_s)
        for worker_id, bringing in list(self._by_worker.items()):
            if bringing.newest is None and now_s >= bringing.since_s + UNANSWERED_S:
                self._end(worker_id, bringing, "there is no word on which checkpoint is the newest")
            elif bringing.newest is None and now_s >= bringing.asked_s + AGAIN_S:
                self._ask(bringing)
        self._proceed()

    def _ask(self, bringing: _Bringing) -> None:
        bringing.asked_s = self._machine.wall.monotonic()
        self._say(bringing.wants)

    # ------------------------------------------------------------------ from step to step

    def _proceed(self) -> None:
        """Each as far as it gets now, or a little; one after the other into one folder."""
        busy = set[Path]()
        for worker_id, bringing in list(self._by_worker.items()):
            if bringing.folder in busy:
                bringing.worked = WAITS
                continue
            busy.add(bringing.folder)
            try:
                bringing.worked = next(bringing.work)
            except StopIteration:
                self._end(worker_id, bringing, "")
            except (OSError, BadInput) as error:
                self._end(worker_id, bringing, f"the newest checkpoint cannot be brought: {error}")

    def _end(self, worker_id: str, bringing: _Bringing, why: str) -> None:
        del self._by_worker[worker_id]
        self._tidy()
        self._done(bringing.wants, bringing.step, why)

    def _tidy(self) -> None:
        """Files that are not waited for are not fetched any further, and their parts are not kept."""
        roots = {each.newest.root for each in self._by_worker.values() if each.newest is not None}
        self._fetching.keep_only(roots)
        if not self._by_worker:
            self._content.keep_only(())

    def _bring(self, bringing: _Bringing) -> Iterator[bool]:
        while (newest := bringing.newest) is None:
            yield WAITS
        if not newest.root or (bringing.own is not None and 0 <= newest.fence <= bringing.own()):
            return
        fetch = self._fetching.of(newest.root, held=True)
        while fetch.entries is None:
            _check(fetch)
            yield WAITS
        entries = fetch.entries
        if not all(is_below(entry.path) for entry in entries):
            raise BadInput("a checkpoint", "names files outside of its folder")
        here: dict[str, Place] = {}
        yield from self._find(bringing.folder, entries, here)
        if not self._is_whole(bringing.folder, entries, here):
            fetch.go_on(here)
            self._fetching.ask_again()
            while not fetch.here:
                _check(fetch)
                yield WAITS
            drafts = bringing.folder.with_name(f"{bringing.folder.name}.brought")
            yield from self._write(drafts, entries, here)
            self._put(drafts, bringing.folder, "" if bringing.own else f"step-{newest.step}")
        self._remove_stale(bringing, newest, {entry.path for entry in entries})
        bringing.step = newest.step

    def _find(self, folder: Path, entries: list[Entry], here: dict[str, Place]) -> Iterator[bool]:
        """Parts that the node has where they belong."""
        done = 0
        for entry in entries:
            path = str(folder / entry.path)
            for index, digest in enumerate(entry.parts):
                place = (path, index * entry.part_bytes, entry.part_bytes)
                data = self._piece(*place)
                if not data:
                    break
                if digest_of(data) == digest:
                    here[digest] = place
                done += len(data)
                if done >= AT_ONCE:
                    done = 0
                    yield WORKED

    def _is_whole(self, folder: Path, entries: list[Entry], here: dict[str, Place]) -> bool:
        try:
            sizes = [self._machine.disk.facts(str(folder / entry.path)).size_bytes for entry in entries]
        except OSError:
            return False
        return sizes == [entry.size_bytes for entry in entries] and all(
            here.get(digest) is not None for entry in entries for digest in entry.parts
        )

    def _write(self, drafts: Path, entries: list[Entry], here: dict[str, Place]) -> Iterator[bool]:
        files, done = self._machine.files, 0
        files.remove_tree(drafts)
        for entry in entries:
            path = drafts / entry.path
            files.make_folder(path.parent)
            files.append(path, b"")
            for digest in entry.parts:
                data = self._part(digest, here)
                if data is None:
                    raise BadInput(path, "a part of it was here, and is gone")
                files.append(path, data)
                done += len(data)
                if done >= AT_ONCE:
                    done = 0
                    yield WORKED

    def _part(self, digest: str, here: dict[str, Place]) -> bytes | None:
        """A part that came was checked as it came; one on the disk may have changed since we looked."""
        if digest not in here:
            return self._content.packed(digest, sure=False)
        return data if digest_of(data := self._piece(*here[digest])) == digest else None

    def _put(self, drafts: Path, folder: Path, name: str) -> None:
        """In place of what has its name and is not it; without a name, of the whole folder."""
        files = self._machine.files
        files.make_folder(folder if name else folder.parent)
        files.remove_tree(folder / name)
        files.rename(drafts / name, folder / name)
        files.remove_tree(drafts)

    def _remove_stale(self, bringing: _Bringing, newest: Newest, brought: Collection[str]) -> None:
        """Others have gone on with the job since these were written, from an older one."""
        folder, machine = bringing.folder, self._machine
        if bringing.own is not None:
            for path, _, _ in files_in(str(folder), machine.disk):
                if path not in brought:
                    with machine.acting(str(folder)):
                        machine.files.remove(folder / path)
            return
        for step in steps_in(str(folder), machine.disk, above=newest.step):
            if step.generation < newest.fence:
                machine.files.remove_tree(folder / f"step-{step.number}")

    def _piece(self, path: str, at: int, size: int) -> bytes:
        try:
            return self._machine.disk.piece(path, since_bytes=at, most_bytes=size)
        except OSError:
            return b""


def _check(fetch: Fetch) -> None:
    if fetch.why_not:
        raise BadInput("a checkpoint", fetch.why_not)
