"""`python -m sublet.runtime.travel.bringing URI PLACE ...`: what lies in buckets, brought to where a job wants it.

A node runs it before the job's setup, with the job's variables. A file is written beside and renamed when it is whole;
one that is there with the length and the time of its object is not fetched again, so that a second try goes on where
the first ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sublet.errors import SubletError
from sublet.machine.objects import Found, Objects
from sublet.machine.remote import open_uri
from sublet.runtime.travel.mirror import fetch, files_among, is_at

__all__ = ["bring", "main"]


def bring(uri: str, place: Path) -> int:
    """All objects under a URI, below `place`; or the one that it names, there. How many were fetched."""
    objects = open_uri(uri)
    if found := objects.list():
        files = files_among(found, uri).values()
        return sum(_fetch(objects, each.key, place / each.key, each) for each in files)
    above, _, name = uri.rstrip("/").rpartition("/")
    return _fetch(open_uri(above), name, place, None)


def _fetch(objects: Objects, key: str, place: Path, found: Found | None) -> int:
    if found is not None and is_at(place, found):
        return 0
    try:
        fetch(objects, key, place, changed_s=None if found is None else found.changed_s)
    except FileNotFoundError:
        if found is None or found.size:
            raise
        place.mkdir(parents=True, exist_ok=True)  # an empty folder of S3's console: `key/`, listed as `key`
        return 0
    return 1


def main(words: list[str]) -> int:
    """Pairs of a URI and a place; 1 with the reason where one cannot be brought."""
    for uri, place in zip(words[::2], words[1::2], strict=True):
        try:
            count = bring(uri, Path(place).expanduser())
        except (SubletError, OSError) as error:
            print(f"file_mounts: {uri} cannot be brought to {place}: {error}", file=sys.stderr)  # noqa: T201 - its log
            return 1
        print(f"file_mounts: {place} has {uri} ({count} files fetched)", flush=True)  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
