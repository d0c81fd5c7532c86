"""The files of one checkpoint: written with their digests and fsynced, read only if every digest is right.

    step-400/
      data-0000.bin ...   bytes of the tensors
      tree.json           what the bytes are (`checkpoint_snapshot`)
      MANIFEST.json       step, meta, and size and SHA-256 of each file above; written last, with a digest of itself

A directory without a whole manifest is no checkpoint. What is read is checked while it is read, so the bytes that were
verified are the bytes that are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sublet.errors import DamagedCheckpoint, InvalidValue
from sublet.train.checkpoint.snapshot import Snapshot, TensorPlace, Tree, state_from

__all__ = [
    "MANIFEST",
    "Manifest",
    "NamedFile",
    "fsync_directory",
    "mode_in",
    "read_manifest",
    "read_state",
    "verify",
    "write",
]

SCHEMA = 1
MANIFEST = "MANIFEST.json"
TREE = "tree.json"
CHUNK_BYTES = 1 << 23  # hashed while still in the cache, then written
OTHERS = 0o077  # bits of everybody but the owner
READERS = 4  # files at a time; a digest is made at 0.5 to 2 GB/s by one core
NAME = re.compile(r"data-\d{4,}\.bin|tree\.json")  # so a manifest cannot point out of its directory
WHAT_PARSING_RAISES = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """One file as it must be."""

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidValue("name", self.name, "data-NNNN.bin or tree.json")
        if type(self.size) is not int or self.size < 0:
            raise InvalidValue("size", self.size, "a whole number of bytes, at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What makes a directory a checkpoint."""

    step: int
    generation: int
    writer: str
    meta: Mapping[str, Any]
    files: tuple[NamedFile, ...]

    @property
    def size_bytes(self) -> int:
        """What the files take together."""
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        """The manifest and its own digest; the same facts always give the same bytes."""
        body = {"schema": SCHEMA, **{key: value for key, value in asdict(self).items() if key != "meta"}}
        text = json.dumps(body | {"meta": self.meta}, sort_keys=True, separators=(",", ":"))
        return f'{{"sha256":"{hashlib.sha256(text.encode()).hexdigest()}",\n"manifest":{text}}}\n'.encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """As it was written; ValueError or the like if one bit differs."""
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


def write(
    directory: Path, snapshot: Snapshot, *, step: int, generation: int, writer: str, meta: Mapping[str, Any]
) -> Manifest:
    """Fill an empty directory: data, tree, manifest, in this order, each on the disk before the next is begun."""
    contents = {f"data-{index:04}.bin": segment for index, segment in enumerate(snapshot.segments)}
    contents[TREE] = memoryview(snapshot.tree.to_json())
    files = [
        NamedFile(name=name, size=len(content), sha256=_write_file(directory / name, content))
        for name, content in contents.items()
    ]
    manifest = Manifest(step=step, generation=generation, writer=writer, meta=meta, files=tuple(files))
    _write_file(directory / MANIFEST, memoryview(manifest.to_json()))
    fsync_directory(directory)
    return manifest


def read_manifest(directory: Path, step: int) -> Manifest:
    """The manifest of step `step`, or DamagedCheckpoint."""
    try:
        manifest = Manifest.from_json((directory / MANIFEST).read_bytes())
    except OSError as error:
        raise DamagedCheckpoint(directory, f"{MANIFEST}: {error.strerror or error}") from error
    except WHAT_PARSING_RAISES as error:
        raise DamagedCheckpoint(directory, f"{MANIFEST} cannot be read: {error}") from error
    if manifest.step != step:
        raise DamagedCheckpoint(directory, f"{MANIFEST} is that of step {manifest.step}")
    names = [file.name for file in manifest.files]
    if TREE not in names or len(set(names)) < len(names):
        raise DamagedCheckpoint(directory, f"{MANIFEST} names the files {names}")
    return manifest


def verify(directory: Path, step: int) -> Manifest:
    """Read everything and keep nothing; DamagedCheckpoint if a digest is wrong."""
    manifest = read_manifest(directory, step)
    _in_parallel(lambda file: _read_file(directory, file, ()), manifest.files)
    return manifest


def read_state(directory: Path, step: int) -> tuple[Manifest, dict[str, Any]]:
    """The state of step `step`, verified, on the CPU, each tensor in memory of its own; or DamagedCheckpoint."""
    manifest = read_manifest(directory, step)
    files = {file.name: file for file in manifest.files}
    text = torch.empty(files[TREE].size, dtype=torch.uint8)
    _read_file(directory, files[TREE], [(0, text)])
    try:
        tree = Tree.from_json(text.numpy().tobytes())
        _refuse_overlaps(tree.places, files)
        memories = [torch.empty(place.size, dtype=torch.uint8) for place in tree.places]
        tensors = [place.seen_in(memory) for place, memory in zip(tree.places, memories, strict=True)]
        state = state_from(tree.root, tensors)
        if not isinstance(state, dict):
            raise TypeError(f"the state is a {type(state).__name__}, not a dict")
    except WHAT_PARSING_RAISES as error:
        raise DamagedCheckpoint(directory, f"{TREE} cannot be read: {error}") from error
    pieces: dict[str, list[tuple[int, torch.Tensor]]] = {name: [] for name in files if name != TREE}
    for place, memory in zip(tree.places, memories, strict=True):
        pieces[_file_of(place)].append((place.start, memory))
    _in_parallel(lambda name: _read_file(directory, files[name], pieces[name]), list(pieces))
    return manifest, state


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def mode_in(directory: Path, mode: int) -> int:
    """For what is made in a directory: closed to others where that one is, and as the umask has it elsewhere."""
    return mode if directory.stat().st_mode & OTHERS else mode & ~OTHERS


def _write_file(path: Path, content: memoryview) -> str:
    digest = hashlib.sha256()
    mode = mode_in(path.parent, 0o644)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        for start in range(0, len(content), CHUNK_BYTES):
            rest = content[start : start + CHUNK_BYTES]
            digest.update(rest)
            while rest:
                rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    return digest.hexdigest()


def _read_file(directory: Path, file: NamedFile, pieces: Sequence[tuple[int, torch.Tensor]]) -> None:
    """Read a file from end to end, each piece into its memory, and refuse all of it if one bit is wrong."""
    digest = hashlib.sha256()
    scratch = memoryview(bytearray(min(CHUNK_BYTES, file.size)))
    try:
        with (directory / file.name).open("rb", buffering=0) as handle:
            if (size := os.fstat(handle.fileno()).st_size) != file.size:
                raise DamagedCheckpoint(directory, f"{file.name} has {size} bytes, not {file.size}")
            position = 0
            for start, memory in [*pieces, (file.size, None)]:
                while position < start:  # padding, or all of it if only the digest is wanted
                    position += _fill(handle, scratch[: min(len(scratch), start - position)], digest)
                if memory is not None:
                    content = memory.numpy().data
                    for begin in range(0, len(content), CHUNK_BYTES):
                        position += _fill(handle, content[begin : begin + CHUNK_BYTES], digest)
    except OSError as error:
        raise DamagedCheckpoint(directory, f"{file.name}: {error.strerror or error}") from error
    if digest.hexdigest() != file.sha256:
        raise DamagedCheckpoint(directory, f"{file.name} does not have the digest in the manifest")


def _fill(handle: Any, memory: memoryview, digest: Any) -> int:
    rest = memory
    while rest:
        count = handle.readinto(rest)
        if not count:
            raise OSError("it became shorter while it was read")
        rest = rest[count:]
    digest.update(memory)
    return len(memory)


def _file_of(place: TensorPlace) -> str:
    return f"data-{place.segment:04}.bin"


def _refuse_overlaps(places: Sequence[TensorPlace], files: Mapping[str, NamedFile]) -> None:
    """Tensors must come one after the other, inside of their files: files are read from end to end."""
    ends: dict[str, int] = {}
    for place in places:
        name = _file_of(place)
        end = place.start + place.size
        if place.start < ends.get(name, 0) or end > files[name].size:
            raise ValueError(f"a tensor has bytes {place.start} to {end} of {name}, which is not possible")
        ends[name] = end


def _in_parallel(work: Any, items: Sequence[Any]) -> None:
    if len(items) < 2:  # noqa: PLR2004 - one file needs no second thread
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(READERS, len(items))) as pool:
        for _ in pool.map(work, items):
            pass
