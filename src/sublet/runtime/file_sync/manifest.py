"""The content of a folder: the path, the mode, the length and the parts of every file. It travels in parts itself.

The *root*, one part, names the parts of the manifest; the name of the root is all that an order to start carries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from sublet.errors import BadInput
from sublet.runtime.file_sync.content import LARGE_PART_BYTES, PART_BYTES, is_digest

__all__ = ["PLAIN", "RUNS", "Entry", "KnownParts", "entries_from", "in_parts", "is_below", "names_in", "write_manifest"]

PLAIN, RUNS = 0o644, 0o755  # most files have one of them: they are 0 and 1 in a manifest, as ever
SHORT = {PLAIN: 0, RUNS: 1}
LONG = {short: mode for mode, short in SHORT.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file. A path is below the working directory, unless it begins with / or ~/."""

    path: str
    parts: tuple[str, ...]
    size_bytes: int
    mode: int = PLAIN

    @property
    def part_bytes(self) -> int:
        """Bytes of each part but the last: there are two lengths, and their number tells which."""
        return PART_BYTES if len(self.parts) == -(-self.size_bytes // PART_BYTES) else LARGE_PART_BYTES


class KnownParts(Protocol):
    """A store of parts: a `Content`, say."""

    def add(self, data: bytes) -> str:
        """Its name."""


def is_below(path: str) -> bool:
    """It names a file below whatever folder it is put into, and nothing outside."""
    return bool(path) and not path.startswith(("/", "~")) and ".." not in PurePosixPath(path).parts


def in_parts(data: bytes) -> Iterator[bytes]:
    """The parts of a file; none of an empty one."""
    return (data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES))


def write_manifest(content: KnownParts, entries: Iterable[Entry]) -> str:
    """The name of its root. The same files give the same name, in whatever order they were found."""
    rows = [[e.path, SHORT.get(e.mode, e.mode), e.size_bytes, *e.parts] for e in sorted(entries, key=lambda e: e.path)]
    text = json.dumps(rows, separators=(",", ":")).encode()
    return content.add("\n".join(content.add(part) for part in in_parts(text)).encode())


def names_in(root: bytes) -> list[str]:
    """The parts of the manifest that a root names."""
    names = root.decode("ascii", errors="replace").split("\n")
    if not all(map(is_digest, names)):
        raise BadInput("a manifest", "its root names no parts")
    return names


def entries_from(text: bytes) -> list[Entry]:
    """Entries of the text of a manifest; BadInput for one that should not be unpacked."""
    try:
        rows = json.loads(text)
        entries = [
            Entry(path=str(path), mode=LONG.get(mode, int(mode)) & RUNS, size_bytes=int(size), parts=tuple(parts))
            for path, mode, size, *parts in rows
        ]
    except (ValueError, TypeError) as error:
        raise BadInput("a manifest", f"cannot be read ({error})") from None
    for entry in entries:
        if ".." in PurePosixPath(entry.path).parts or not all(map(is_digest, entry.parts)):
            raise BadInput("a manifest", f"has no file that could be called {entry.path!r}")
        if len(entry.parts) != -(-entry.size_bytes // entry.part_bytes):
            raise BadInput("a manifest", f"has {len(entry.parts)} parts of {entry.path!r}, which is not its length")
    return entries
