"""One object to one file, and a note of which object it was: size and time are not enough to tell two apart.

An object that is replaced within the second by one of the same length has their like. Its tag tells the versions apart,
so that is noted before the file is there: an interruption in between leaves a note without its file, which says
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from sublet.machine.objects import Found, Objects, Torn

__all__ = ["CHUNK_BYTES", "DRAFT", "Came", "Shape", "fetch", "shape_of"]

CHUNK_BYTES: Final = 1 << 23
MOST_TRIES: Final = 3  # at an object that others write while it is read
DRAFT: Final = ".sublet-part"  # ends the name of a file that is not whole yet


class Shape(NamedTuple):
    """The facts that change when a file is written."""

    size: int
    written_ns: int


def shape_of(facts: os.stat_result) -> Shape:
    """The shape of a file."""
    return Shape(facts.st_size, facts.st_mtime_ns)


class Came:
    """Notes of a folder, in a file outside it: a line each, of which the last counts."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._known: dict[str, tuple[Shape, str, str]] = {}  # with the tag, and the URI that the key is under
        with contextlib.suppress(FileNotFoundError):
            for line in notes.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError, KeyError):  # cut off by an end
                    facts: Any = json.loads(line)
                    shape, uri = Shape(facts["size"], facts["written_ns"]), str(facts.get("uri", ""))
                    self._known[facts["key"]] = shape, str(facts["tag"]), uri

    def tag_of(self, key: str, place: Path) -> str | None:
        """The tag of the object from which `place` was fetched; None where it was not, or was written since."""
        try:
            shape, tag, _ = self._known[key]
            return tag if shape_of(place.stat()) == shape else None
        except (KeyError, OSError):
            return None

    def uri_of(self, key: str) -> str:
        """Under which the key was when it was noted last; "" where it is unknown."""
        return self._known[key][2] if key in self._known else ""

    def note(self, found: Found, shape: Shape, uri: str) -> None:
        """This object is about to be a file of this shape. Lines are short: those of two threads do not mix."""
        self._known[found.key] = shape, found.tag, uri
        line = json.dumps({"key": found.key, **shape._asdict(), "tag": found.tag, "uri": uri})
        self._notes.parent.mkdir(parents=True, exist_ok=True)
        with self._notes.open("ab", buffering=0) as notes:
            notes.write(f"{line}\n".encode())

    def clear(self) -> None:
        """They are written elsewhere, or of no use any more."""
        self._known = {}
        self._notes.unlink(missing_ok=True)


def fetch(objects: Objects, key: str, place: Path, *, found: Found | None = None, came: Came | None = None) -> None:
    """Written beside, noted, and there when it is whole; with the time of the object that a list has `found`.

    One that is replaced meanwhile is read again from its beginning; Torn where that happens each time.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(place.name + DRAFT)
    for left in reversed(range(MOST_TRIES)):
        try:
            _read(objects, key, draft)
            break
        except Torn:
            if not left:
                draft.unlink(missing_ok=True)
                raise
    if found is not None:
        os.utime(draft, (found.changed_s, found.changed_s))
        if came is not None:
            came.note(found, shape_of(draft.stat()), objects.uri)
    draft.replace(place)


def _read(objects: Objects, key: str, draft: Path) -> None:
    written, memory = 0, memoryview(bytearray(CHUNK_BYTES))
    with objects.open(key) as source, draft.open("wb") as file:
        while count := source.readinto(memory):
            written += file.write(memory[:count])
        whole = source.size
    if written != whole:
        raise OSError(f"{objects.uri}/{key}: {written} bytes came of {whole}")
