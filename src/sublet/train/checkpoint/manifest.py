"""The manifest of one checkpoint and its files: written with their digests, read only if each is right.

    step-400/
      data-0000.bin ...   bytes of the tensors
      tree.json           the structure of the state (`snapshot`)
    .metadata, *.distcp tensors in shards, as torch writes them (`sharded/dcp`)
      MANIFEST.json       step, meta, and size and SHA-256 of each file above; written last, with a digest of itself

A directory without a whole manifest is no checkpoint. Files are verified while they are read, so the verified bytes are
the bytes that are used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from sublet.errors import DamagedCheckpoint, InvalidValue
from sublet.train.checkpoint.disk import CHUNK_BYTES, Folder, Reading

SCHEMA = 1
MANIFEST = "MANIFEST.json"
TREE = "tree.json"
READERS = 4  # files at a time; a digest is made at 0.5 to 2 GB/s by one core
NAME = re.compile(
    r"data-\d{4,}\.bin|tree\.json|\.metadata|__\d+_\d+\.distcp"
)  # so a manifest cannot point out of its directory
WHAT_PARSING_RAISES = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """One file as it must be."""

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidValue("name", self.name, "data-NNNN.bin, tree.json, or a file of DCP")
        if type(self.size) is not int or self.size < 0:
            raise InvalidValue("size", self.size, "a whole number of bytes, at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The file that makes a directory a checkpoint."""

    step: int
    generation: int
    writer: str
    meta: Mapping[str, Any]
    files: tuple[NamedFile, ...]

    @property
    def size_bytes(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        """The manifest and its own digest; the same facts always give the same bytes."""
        body = {"schema": SCHEMA, **{key: value for key, value in asdict(self).items() if key != "meta"}}
        text = json.dumps(body | {"meta": self.meta}, sort_keys=True, separators=(",", ":"))
        return f'{{"sha256":"{hashlib.sha256(text.encode()).hexdigest()}",\n"manifest":{text}}}\n'.encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Counterpart of `to_json`; ValueError or the like if one bit differs."""
        facts = json.loads(text)["manifest"]
        if facts["schema"] != SCHEMA:
            raise ValueError(f"schema {facts['schema']!r}, this version reads {SCHEMA}")
        manifest = cls(
            step=facts["step"],
            generation=facts["generation"],
            writer=facts["writer"],
            meta=facts["meta"],
            files=tuple(NamedFile(**file) for file in facts["files"]),
        )
        if manifest.to_json() != text:
            raise ValueError("it does not match its own digest")
        return manifest


def write_files(
    folder: Folder,
    contents: Mapping[str, memoryview],
    *,
    step: int,
    generation: int,
    writer: str,
    meta: Mapping[str, Any],
    beside: Sequence[NamedFile] = (),
) -> Manifest:
    """Fill a folder: the contents, then the manifest, each there for good before the next is begun.

    It names those `beside` too, which others have written there.
    """
    for file in beside:
        folder.expect(file.name, file.size)
    files = [*beside, *write_contents(folder, contents)]
    manifest = Manifest(step=step, generation=generation, writer=writer, meta=meta, files=tuple(files))
    folder.write(MANIFEST, memoryview(manifest.to_json()))
    folder.seal()
    return manifest


def write_contents(folder: Folder, contents: Mapping[str, memoryview]) -> list[NamedFile]:
    """Each under its name, and there for good."""
    return [
        NamedFile(name=name, size=len(content), sha256=folder.write(name, content))
        for name, content in contents.items()
    ]


def read_manifest(folder: Folder, step: int) -> Manifest:
    """The manifest of step `step`, or DamagedCheckpoint."""
    try:
        manifest = Manifest.from_json(_read_whole(folder))
    except OSError as error:
        raise DamagedCheckpoint(folder.place, f"{MANIFEST}: {error.strerror or error}") from error
    except WHAT_PARSING_RAISES as error:
        raise DamagedCheckpoint(folder.place, f"{MANIFEST} cannot be read: {error}") from error
    if manifest.step != step:
        raise DamagedCheckpoint(folder.place, f"{MANIFEST} is that of step {manifest.step}")
    names = [file.name for file in manifest.files]
    if TREE not in names or len(set(names)) < len(names):
        raise DamagedCheckpoint(folder.place, f"{MANIFEST} names the files {names}")
    return manifest


def verify(folder: Folder, step: int) -> Manifest:
    """Read everything and keep nothing; DamagedCheckpoint if a digest is wrong."""
    manifest = read_manifest(folder, step)
    in_parallel(lambda file: read_file(folder, file, ()), manifest.files)
    return manifest


def read_file(folder: Folder, file: NamedFile, pieces: Sequence[tuple[int, memoryview]]) -> None:
    """Read a file from end to end, each piece into its memory, and refuse all of it if one bit is wrong."""
    digest = hashlib.sha256()
    scratch = memoryview(bytearray(min(CHUNK_BYTES, file.size)))
    try:
        with folder.open(file.name) as reading:
            if (size := reading.size) != file.size:
                raise DamagedCheckpoint(folder.place, f"{file.name} has {size} bytes, not {file.size}")
            position = 0
            for start, memory in [*pieces, (file.size, None)]:
                while position < start:  # padding, or all of it if only the digest is wanted
                    position += _fill(reading, scratch[: min(len(scratch), start - position)], digest)
                if memory is not None:
                    for begin in range(0, len(memory), CHUNK_BYTES):
                        position += _fill(reading, memory[begin : begin + CHUNK_BYTES], digest)
    except OSError as error:
        raise DamagedCheckpoint(folder.place, f"{file.name}: {error.strerror or error}") from error
    if digest.hexdigest() != file.sha256:
        raise DamagedCheckpoint(folder.place, f"{file.name} does not have the digest in the manifest")


def in_parallel(work: Any, items: Sequence[Any]) -> None:
    """`work` on each, a few at a time."""
    if len(items) < 2:  # noqa: PLR2004 - one file needs no second thread
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(READERS, len(items))) as pool:
        for _ in pool.map(work, items):
            pass


def _read_whole(folder: Folder) -> bytes:
    with folder.open(MANIFEST) as reading:
        found = bytearray()
        memory = memoryview(bytearray(max(1, reading.size)))
        while count := reading.readinto(memory):
            found += memory[:count]
        return bytes(found)


def _fill(reading: Reading, memory: memoryview, digest: Any) -> int:
    rest = memory
    while rest:
        count = reading.readinto(rest)
        if not count:
            raise OSError("it became shorter while it was read")
        rest = rest[count:]
    digest.update(memory)
    return len(memory)
