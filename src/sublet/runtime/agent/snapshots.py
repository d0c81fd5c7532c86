"""Checkpoints on a node's disk, as an agent sees them from outside: folders of the SDK, and of other scripts.

Nothing is copied. A file that changes between the two, or is thrown away, spoils the snapshot. One with the same length
and time of writing is taken for the same. It is read with more care if the receiver, which checks it, has doubts.

There is no message about a save. A folder that has changed, and is the same at two looks, is taken as it is; one that
never rests, because a log grows in it, is taken after a while, file by file as each stood. Files that change while they
are read are read again.

It is put together beside and renamed, so that a worker finds all of it or none. A newer checkpoint on the node's own
disk counts only if no other worker has gone on with the job since it was written.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from sublet.errors import BadInput
from sublet.runtime.agent.disk import Disk, FileFacts
from sublet.runtime.agent.machine import Machine
from sublet.runtime.file_sync.content import (
    LARGE_PART_BYTES,
    Content,
    Entry,
    Fetch,
    Fetching,
    Keep,
    digest_of,
    is_below,
    write_manifest,
)
from sublet.wire.files import Lacks, Newest, Part, Wants

LOOK_S = 1.0  # between two looks ...
LOOK_FILES = 500  # ... and as much more for so many files: a look is to cost next to nothing
RESTLESS_S = 10.0  # that a folder may go on changing, before it is taken as it is
MOST_FILES = 5_000
Signature = tuple[tuple[str, int, int], ...]  # path below the folder, length, when it was written
MANIFEST = "MANIFEST.json"
IN_STEP = re.compile(r"step-(0|[1-9]\d*)/([^/]+)")
MOST_BYTES = 1 << 22  # of a manifest
AT_ONCE = 4 << 20  # bytes, before the agent looks at its lines again


def files_in(folder: str, disk: Disk) -> Signature:
    """The files to carry, in order; no links, and one file more than may be."""
    found = []
    for path in islice(disk.below(folder), MOST_FILES + 1):
        with contextlib.suppress(OSError):  # it was replaced while we looked
            facts = disk.facts(path, follow=False)
            if facts.is_regular:
                found.append((path[len(folder) + 1 :], facts.size_bytes, facts.written_ns))
    return tuple(sorted(found))


class FolderFinder:
    """That of one job on this node, as `snapshots.Finder` has it."""

    def __init__(self, folder: str, disk: Disk, now_s: float) -> None:
        self.folder, self._disk = folder, disk
        self.generation = 0
        self._settled: Signature = ()  # as it was carried, or could not be
        self._carried: Signature = ()
        self._seen: Signature = ()
        self._looked_s, self._look_s = now_s, now_s + LOOK_S
        self._restless_s: float | None = None  # since when it changes
        self.watched = False  # saves were seen there

    def touch(self) -> None:
        """A worker has ended, or will: look at once."""
        self._look_s = float("-inf")

    def due_s(self) -> float:
        """At every look, while there are saves."""
        return self._look_s if self.watched or self._look_s == float("-inf") else float("inf")

    def find(self, now_s: float, *, urgent: bool) -> Found | None:
        """All of it, if it is not as it was carried last."""
        before, self._seen = self._seen, files_in(self.folder, self._disk)
        seen, self._looked_s = self._seen, now_s
        self._look_s = now_s + LOOK_S * (1.0 + len(seen) / LOOK_FILES)
        if not seen or seen == self._settled:
            self._restless_s = None
            return None
        self._restless_s = now_s if self._restless_s is None else self._restless_s
        if not urgent and seen != before and now_s - self._restless_s < RESTLESS_S:
            return None
        paths, written_ns = tuple(path for path, _, _ in seen), max(written for _, _, written in seen)
        return Found(paths=paths, generation=self.generation, written_ns=written_ns, mark=seen)

    def is_still(self, found: Found) -> bool:
        """Or it never is."""
        restless = self._restless_s is not None and self._looked_s - self._restless_s >= RESTLESS_S
        return restless or files_in(self.folder, self._disk) == found.mark

    def settle(self, found: Found, *, carried: bool) -> None:
        """So it is with the controller, or will not be."""
        mark: Signature = found.mark  # type: ignore[assignment]  # we made it
        self._settled, self._restless_s = mark, None
        self._carried = mark if carried else self._carried

    def came(self, generation: int, step: int) -> None:
        """The files here are those of the controller, if anything was brought; else they are to be carried."""
        self.generation = generation
        if step >= 0:
            self._carried = files_in(self.folder, self._disk)
        self._settled = self._carried


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One that was committed; whether it is whole is not known."""

    number: int
    paths: tuple[str, ...]  # below the folder, the manifest last
    generation: int  # of its writer
    done: float  # samples


class Steps:
    """Those of one job on this node, as `snapshots.Finder` has it."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder, self._disk = folder, disk
        self.generation = 0  # of the last that went on from here: what was here then is its own
        self._settled = self._carried = -1
        self._changed = True

    def touch(self) -> None:
        """There may be something new."""
        self._changed = True

    def due_s(self) -> float:
        """At once, if something may be new."""
        return float("-inf") if self._changed else float("inf")

    def find(self, now_s: float, *, urgent: bool) -> Found | None:
        """The newest that is not settled."""
        del now_s, urgent  # it is whole since it is there
        self._changed = False
        for step in steps_in(self.folder, self._disk, above=self._settled)[:1]:
            generation = max(step.generation, self.generation)
            return Found(paths=step.paths, generation=generation, step=step.number, done=step.done)
        return None

    def is_still(self, found: Found) -> bool:
        """Its files were not touched, or the snapshot is spoiled."""
        return bool(found)

    def settle(self, found: Found, *, carried: bool) -> None:
        """It is carried, or will not be."""
        self._settled = max(self._settled, found.step)
        self._carried = max(self._carried, found.step) if carried else self._carried
        self._changed = True

    def came(self, generation: int, step: int) -> None:
        """The newest that the controller has was brought here, for a worker of this generation."""
        self._carried = self._settled = max(self._carried, step)
        self.generation, self._changed = generation, True


def steps_in(folder: str, disk: Disk, *, above: int = -1) -> list[_Step]:
    """Those above a step, the highest first; none that could not be loaded."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in disk.below(folder):
        name = path[len(folder) + 1 :]
        if (match := IN_STEP.fullmatch(name)) and int(match[1]) > above and _is_plain(path, disk):
            found[int(match[1])].append(name)
    steps = [_step(folder, number, sorted(found[number]), disk) for number in sorted(found, reverse=True)]
    return [step for step in steps if step is not None]


def _is_plain(path: str, disk: Disk) -> bool:
    """The SDK writes nothing else."""
    try:
        return disk.facts(path, follow=False).is_regular
    except OSError:
        return False


def _step(folder: str, number: int, paths: list[str], disk: Disk) -> _Step | None:
    manifest = f"step-{number}/{MANIFEST}"
    try:
        text = disk.piece(f"{folder}/{manifest}", since_bytes=0, most_bytes=MOST_BYTES)
        facts = json.loads(text)["manifest"]
        generation, done = int(facts["generation"]), float(facts["meta"].get("samples_done", number))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    ordered = (*(path for path in paths if path != manifest), manifest)
    return _Step(number=number, paths=ordered, generation=generation, done=done)


class Found(NamedTuple):
    """A checkpoint that the controller may lack: files below a folder, and what is said of them when it is offered."""

    paths: tuple[str, ...]
    generation: int
    step: int = -1
    done: float = 0.0
    written_ns: int = 0  # when the last of it was, by the clock of the disk; 0 = it does not matter
    mark: object = None  # by which its finder knows it again


class Finder(Protocol):
    """The checkpoints of one job on this node, and which of them is to be carried next."""

    folder: str
    generation: int  # of the last that went on from here

    def touch(self) -> None:
        """There may be something new."""

    def due_s(self) -> float:
        """When to look next."""

    def find(self, now_s: float, *, urgent: bool) -> Found | None:
        """The next to be carried now; if it is `urgent`, whether or not all is quiet."""

    def is_still(self, found: Found) -> bool:
        """All of it is as it was found."""

    def settle(self, found: Found, *, carried: bool) -> None:
        """It is carried, or will not be, for the worker that goes on from here now."""

    def came(self, generation: int, step: int) -> None:
        """The newest that the controller has was brought here, for a worker of this generation."""


class Spoiled(Exception):
    """A file is another one than it was, or gone."""


class Snapshot:
    """A snapshot of files below `folder`, by their paths there. `root` is its name, once all of it has been read."""

    def __init__(self, disk: Disk, folder: str, paths: Sequence[str]) -> None:
        self._disk, self._folder, self._paths = disk, folder, tuple(paths)
        self._pages: dict[str, bytes] = {}  # the manifest and its root
        self._places: dict[str, tuple[str, int]] = {}  # part -> file, and where in it
        self._files: dict[str, FileFacts] = {}  # as they were read
        self._work = self._read()
        self.root = ""
        self.size_bytes = 0

    def work(self) -> bool:
        """Read some more; whether that is all. Spoiled as it says."""
        done = 0
        for size in self._work:
            done += size
            if done >= AT_ONCE:
                return False
        return True

    def has(self, digest: str) -> bool:
        """It had such a part."""
        return digest in self._pages or digest in self._places

    def part(self, digest: str, *, sure: bool = False) -> bytes | None:
        """None where there is no such part, or no longer; `sure`: whatever its file looks like."""
        if digest in self._pages:
            return self._pages[digest]
        if digest not in self._places:
            return None
        path, at = self._places[digest]
        try:
            data = self._disk.piece(path, since_bytes=at, most_bytes=LARGE_PART_BYTES)
            same = self._disk.facts(path, follow=False)[:2] == self._files[path][:2]
        except OSError:
            return None
        return data if (same and not sure) or digest_of(data) == digest else None

    def add(self, data: bytes) -> str:
        """A page of the manifest."""
        digest = digest_of(data)
        self._pages[digest] = data
        return digest

    def _read(self) -> Iterator[int]:
        entries = []
        for name in self._paths:
            path, parts = f"{self._folder}/{name}", list[str]()
            before = self._facts(path)
            for at in range(0, before.size_bytes, LARGE_PART_BYTES):
                data = self._piece(path, at)
                parts.append(digest_of(data))
                self._places[parts[-1]] = (path, at)
                yield len(data)
            if self._facts(path)[:2] != before[:2]:
                raise Spoiled(path)
            self._files[path] = before
            self.size_bytes += before.size_bytes
            entries.append(Entry(path=name, parts=tuple(parts), size_bytes=before.size_bytes))
        self.root = write_manifest(self, entries)

    def _facts(self, path: str) -> FileFacts:
        try:
            return self._disk.facts(path, follow=False)
        except OSError:
            raise Spoiled(path) from None

    def _piece(self, path: str, at: int) -> bytes:
        try:
            return self._disk.piece(path, since_bytes=at, most_bytes=LARGE_PART_BYTES)
        except OSError:
            raise Spoiled(path) from None


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
