"""The process that copies checkpoints between the controller's disk and a bucket: digests of gigabytes delay nothing.

    python -m sublet.cli.work.copying SOURCE TARGET KEEP

One of both is a URI. The other is a directory that workers wrote to, or after `carried:` one of what agents carried to
the controller. It prints one line of JSON: {"step": 400, "size_bytes": 123, "seconds": 1.5}, step -1 where there is
nothing to copy. Its errors are on standard error, and it ends with 1.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sublet.errors import BadInput, SubletError
from sublet.machine.files import FILES
from sublet.machine.remote import is_remote
from sublet.machine.wall import WALL
from sublet.runtime.controller.files import CARRIED, Anchor, Commit
from sublet.runtime.file_sync.content import LARGE_PART_BYTES, Entry, write_manifest
from sublet.train.checkpoint.manifest import read_manifest
from sublet.train.checkpoint.store import Copied, copy_newest, open_store


def main(source: str, target: str, keep: str) -> int:
    """The exit code."""
    began_s = WALL.monotonic()
    try:
        done = bring(source, target, int(keep)) if is_remote(source) else send(source, target, int(keep))
    except (SubletError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    step, size = (-1, 0) if done is None else (done.step, done.size_bytes)
    facts = {"step": step, "size_bytes": size, "seconds": WALL.monotonic() - began_s}
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


def send(place: str, uri: str, keep: int) -> Copied | None:
    """To a bucket."""
    if not place.startswith(CARRIED):
        return copy_newest(open_store(place), open_store(uri), keep=keep, room=on_disk)
    carried = _Carried(Anchor(Path(place.removeprefix(CARRIED)), FILES))
    return copy_newest(carried, open_store(uri), keep=keep, room=on_disk)


def bring(uri: str, place: str, keep: int) -> Copied | None:
    """From a bucket, to where there is none. No other process looks there meanwhile: the job is held."""
    if not place.startswith(CARRIED):
        return copy_newest(open_store(uri), open_store(place), keep=keep, room=on_disk)
    folder = Path(place.removeprefix(CARRIED))
    beside = folder / "brought"
    store = open_store(beside)
    try:
        if (done := copy_newest(open_store(uri), store, keep=keep, room=on_disk)) is not None:
            commit_step(Anchor(folder, FILES), beside, done.step, keep=keep)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return done


def commit_step(anchor: Anchor, folder: Path, step: int, *, keep: int) -> None:
    """The checkpoint of a step in a directory that workers wrote to, as if agents had carried it."""
    manifest = read_manifest(open_store(folder).folder(step), step)
    commit = Commit(
        step=step,
        generation=manifest.generation,
        root=_named(anchor, folder, sorted((folder / f"step-{step}").iterdir())),
        size_bytes=manifest.size_bytes,
        done=float(manifest.meta.get("samples_done", step)),
    )
    anchor.commit(commit, keep=keep)


def commit_files(anchor: Anchor, folder: Path, paths: Sequence[Path]) -> int:
    """The same of what a script without the SDK has saved, which has no step of its own: they are counted."""
    newest = anchor.head.newest
    step = 1 if newest is None else newest.step + 1
    size_bytes = sum(path.stat().st_size for path in paths)
    commit = Commit(step=step, generation=0, root=_named(anchor, folder, paths), size_bytes=size_bytes)
    anchor.commit(commit, keep=1)
    return step


def _named(anchor: Anchor, folder: Path, paths: Sequence[Path]) -> str:
    return write_manifest(anchor.content, [_entry(anchor, folder, path) for path in paths])


def _entry(anchor: Anchor, folder: Path, path: Path) -> Entry:
    """As agents name it: below the folder of all steps."""
    parts = []
    with path.open("rb") as file:
        while data := file.read(LARGE_PART_BYTES):
            parts.append(anchor.content.add(data))
    return Entry(path=str(path.relative_to(folder)), parts=tuple(parts), size_bytes=path.stat().st_size)


class _Carried:
    """Checkpoints that agents carried to the controller, read like a store."""

    def __init__(self, anchor: Anchor) -> None:
        self._anchor = anchor

    def steps(self) -> list[int]:
        """Highest first."""
        return sorted((commit.step for commit in self._anchor.head.commits), reverse=True)

    def folder(self, step: int) -> _CarriedFolder:
        """The files of a step."""
        commit = next(each for each in self._anchor.head.commits if each.step == step)
        files = {entry.path: entry for entry in self._anchor.entries(commit)}
        return _CarriedFolder(self._anchor, step, files)


@dataclass(frozen=True, slots=True)
class _CarriedFolder:
    """The files of one checkpoint; a part that is gone or damaged is an OSError of the file."""

    anchor: Anchor
    step: int
    files: dict[str, Entry]

    @property
    def place(self) -> str:
        """As people find it."""
        return f"{self.anchor.folder}: step-{self.step}"

    def open(self, name: str) -> _Reading:
        """Put together from its parts."""
        if (entry := self.files.get(f"step-{self.step}/{name}")) is None:
            raise FileNotFoundError(name)
        return _Reading(entry.size_bytes, self.anchor.read(entry))

    def write(self, name: str, content: memoryview) -> str:
        """Not used."""
        raise NotImplementedError(name)

    def expect(self, name: str, size: int) -> None:
        """As above."""
        raise NotImplementedError(name, size)

    def seal(self) -> None:
        """As above."""
        raise NotImplementedError


class _Reading:
    """A file of which one part at a time is in memory."""

    def __init__(self, size: int, parts: Iterator[bytes]) -> None:
        self.size, self._parts = size, parts
        self._rest = memoryview(b"")

    def readinto(self, memory: memoryview, /) -> int:
        """Some of what comes next; how many bytes, 0 at its end."""
        try:
            while not self._rest and (part := next(self._parts, None)) is not None:
                self._rest = memoryview(part)
        except BadInput as error:
            raise OSError(str(error)) from error
        count = min(len(memory), len(self._rest))
        memory[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open between two parts."""


@contextlib.contextmanager
def on_disk(size: int) -> Iterator[memoryview]:
    """Room that the machine may write out: a file may be larger than the memory of a small controller host."""
    if not size:
        yield memoryview(b"")
        return
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        yield memoryview(mmap.mmap(file.fileno(), size))  # goes with its last user: a store may go on


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
