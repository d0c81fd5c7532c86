"""Checkpoints on a node's disk, as an agent sees them from outside: folders of the SDK, and of other scripts.

Nothing is copied. A file that changes between the two, or is thrown away, spoils the snapshot. One with the same length
and time of writing is taken for the same. It is read with more care if the receiver, which checks it, has doubts.

There is no message about a save. A folder that has changed, and is the same at two looks, is taken as it is; one that
never rests, because a log grows in it, is taken after a while, file by file as each stood. Files that change while they
are read are read again.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from sublet.runtime.agent.disk import Disk, FileFacts
from sublet.runtime.file_sync.content import LARGE_PART_BYTES, Entry, digest_of, write_manifest

__all__ = [
    "AT_ONCE",
    "LOOK_S",
    "MOST_FILES",
    "RESTLESS_S",
    "Finder",
    "FolderFinder",
    "Found",
    "Snapshot",
    "Spoiled",
    "Steps",
    "files_in",
    "steps_in",
]

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
