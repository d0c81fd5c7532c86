"""The process that copies checkpoints between the controller's disk and a bucket: digests of gigabytes hold nobody up.

    python -m sublet.cli.work.copying SOURCE TARGET KEEP

One of both is a URI. The other is a directory that workers wrote to, or after `carried:` one of what agents carried to
the controller. It prints one line of JSON: {"step": 400, "size_bytes": 123, "seconds": 1.5}, step -1 where there is
nothing to copy. What went wrong is on its standard error, and it ends with 1.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sublet.errors import BadInput, SubletError
from sublet.machine.files import FILES
from sublet.machine.remote import is_remote
from sublet.machine.wall import WALL
from sublet.runtime.controller.anchor import Anchor, Commit
from sublet.runtime.controller.bucket_copies import CARRIED
from sublet.runtime.travel.content import LARGE_PART_BYTES
from sublet.runtime.travel.manifest import Entry, write_manifest
from sublet.train.checkpoint.copying import Copied, copy_newest
from sublet.train.checkpoint.manifest import read_manifest
from sublet.train.checkpoint.store import open_store

__all__ = ["bring", "main", "send"]


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
        return copy_newest(open_store(place), open_store(uri), keep=keep)
    return copy_newest(_Carried(Anchor(Path(place.removeprefix(CARRIED)), FILES)), open_store(uri), keep=keep)


def bring(uri: str, place: str, keep: int) -> Copied | None:
    """From a bucket, to where there is none. Nobody else looks there meanwhile: the job is held."""
    if not place.startswith(CARRIED):
        return copy_newest(open_store(uri), open_store(place), keep=keep)
    folder = Path(place.removeprefix(CARRIED))
    beside = folder / "brought"
    store = open_store(beside)
    try:
        if (done := copy_newest(open_store(uri), store, keep=keep)) is not None:
            anchor, manifest = Anchor(folder, FILES), read_manifest(store.folder(done.step), done.step)
            root = write_manifest(
                anchor.content,
                [_entry(anchor, beside, path) for path in sorted((beside / f"step-{done.step}").iterdir())],
            )
            commit = Commit(
                step=done.step,
                generation=manifest.generation,
                root=root,
                size_bytes=manifest.size_bytes,
                done=float(manifest.meta.get("samples_done", done.step)),
            )
            anchor.commit(commit, keep=keep)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return done


def _entry(anchor: Anchor, folder: Path, path: Path) -> Entry:
    """As agents name it: below the folder of all steps."""
    parts = []
    with path.open("rb") as file:
        while data := file.read(LARGE_PART_BYTES):
            parts.append(anchor.content.add(data))
    return Entry(path=str(path.relative_to(folder)), parts=tuple(parts), size_bytes=path.stat().st_size)


class _Carried:
    """What agents carried to the controller, read like a store."""

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
        try:
            return _Reading(b"".join(self.anchor.read(entry)))
        except BadInput as error:
            raise OSError(str(error)) from error

    def write(self, name: str, content: memoryview) -> str:
        """Nobody does."""
        raise NotImplementedError(name)

    def seal(self) -> None:
        """As above."""
        raise NotImplementedError


class _Reading(io.BytesIO):
    """A file in memory."""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.getbuffer().nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
