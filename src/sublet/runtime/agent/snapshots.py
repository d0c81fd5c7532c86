"""The content of a folder of checkpoints at one moment: named part by part, read again when it is asked for.

Nothing is copied. A file that changes between the two, or is thrown away, spoils the snapshot. One with the same length
and time of writing is taken for the same. It is read with more care if the receiver, which checks it, has doubts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from sublet.runtime.agent.disk import Disk, FileFacts
from sublet.runtime.file_sync.content import LARGE_PART_BYTES, digest_of
from sublet.runtime.file_sync.manifest import Entry, write_manifest

__all__ = ["AT_ONCE", "Finder", "Found", "Snapshot", "Spoiled"]

AT_ONCE = 4 << 20  # bytes, before the agent looks at its lines again


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
