"""`python -m sublet.runtime.file_sync.bringing URI PLACE ...`: what lies in buckets, brought to where a job wants it.

A node runs it before the job's setup, with the job's variables. A file is written beside and renamed when it is whole.
One that came from the same object, by its tag, and was not written since is not fetched again, so that a second try
goes on where the first ended.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from sublet.errors import SubletError
from sublet.machine.objects import FileObjects, Found, Objects
from sublet.machine.remote import open_uri
from sublet.runtime.agent.outside import refused
from sublet.runtime.file_sync.mirror import CHUNK_BYTES, Came, fetch, files_among

NOT_OURS = "something is there that did not come from a bucket"


def bring(uri: str, place: Path, *, machines: bool = False) -> int:
    """All objects under a URI, below `place`; or the one that it names, there. How many were fetched.

    At a path of the `machines` nothing is replaced that did not come from there: FileExistsError, and then nothing is.
    """
    objects: FileObjects = open_uri(uri)
    came = Came(_notes_of(place))
    if listed := objects.list():
        files = [(each, place / each.key) for each in files_among(listed, uri).values()]
    else:
        above, _, name = uri.rstrip("/").rpartition("/")
        objects = open_uri(above)
        files = [(objects.look(name), place)]
    if machines:
        files = [(found, path) for found, path in files if not _is_anybodys(objects, found, path, came)]
    return sum(_fetch(objects, found, path, came) for found, path in files)


def _is_anybodys(objects: Objects, found: Found, path: Path, came: Came) -> bool:
    """Whether the same is there, and another's. FileExistsError where something else is."""
    if not os.path.lexists(path) or (path.is_dir() and not found.size):
        return False
    if came.tag_of(found.key, path) is not None:
        if came.uri_of(found.key) not in ("", objects.uri):
            raise refused(str(path), f"it came from {came.uri_of(found.key)}")
        return False
    if path.is_file() and not path.is_symlink() and _are_same(objects, found, path):
        return True
    why = "it came from there, and was written to since" if came.uri_of(found.key) == objects.uri else NOT_OURS
    raise refused(str(path), why)


def _are_same(objects: Objects, found: Found, path: Path) -> bool:
    if path.stat().st_size != found.size:
        return False
    memory = memoryview(bytearray(CHUNK_BYTES))
    with objects.open(found.key) as source, path.open("rb") as file:
        while count := source.readinto(memory):
            if file.read(count) != memory[:count]:
                return False
    return True


def _notes_of(place: Path) -> Path:
    """In the home of the job's user, beside those of folders that are mounted."""
    name = hashlib.sha256(str(place.absolute()).encode()).hexdigest()[:24]
    return Path.home() / ".sublet" / "brought" / f"{name}.jsonl"


def _fetch(objects: Objects, found: Found, place: Path, came: Came) -> int:
    if came.tag_of(found.key, place) == found.tag:
        return 0
    try:
        fetch(objects, found.key, place, found=found, came=came)
    except FileNotFoundError:
        if found.size:
            raise
        place.mkdir(parents=True, exist_ok=True)  # an empty folder of S3's console: `key/`, listed as `key`
        return 0
    return 1


def main(words: list[str]) -> int:
    """Pairs of a URI and a place; 1 with the reason where one cannot be brought."""
    for uri, place in zip(words[::2], words[1::2], strict=True):
        try:
            count = bring(uri, Path(place).expanduser(), machines=place.startswith("/"))
        except (SubletError, OSError) as error:
            print(f"file_mounts: {uri} cannot be brought to {place}: {error}", file=sys.stderr)  # noqa: T201 - its log
            return 1
        print(f"file_mounts: {place} has {uri} ({count} files fetched)", flush=True)  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
