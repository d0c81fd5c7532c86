"""`file_mounts` of a job file: which files and buckets a node finds where, and what has to go back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sublet.errors import InvalidValue
from sublet.machine.remote import SCHEMES as STORES

if TYPE_CHECKING:
    from sublet.runtime.jobs.schema import Bucket

__all__ = ["MountPlaces", "find_path", "read_mounts", "with_variables"]

VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
SCHEMES: Final = {"gcs": "gs", "azure": "az"}  # by the name of a store; others are called like their scheme
MODES: Final = ("COPY", "MOUNT", "MOUNT_CACHED")


@dataclass(frozen=True, slots=True)
class MountPlaces:
    """Base folders for paths of a file: beside it, then where one is."""

    bases: tuple[Path, ...]
    exists: Callable[[Path], bool] = Path.exists


@dataclass(slots=True)
class Mounts:
    """Mounts, by the path on a node; of `kept` ones something goes back, for `new` ones a bucket is made."""

    given: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[InvalidValue] = field(default_factory=list)


def read_mounts(written: Mapping[str, Bucket], variables: Mapping[str, str], places: MountPlaces) -> Mounts:
    """All of them, and everything that is wrong; a local path is looked for in each of `places`."""
    found = Mounts()
    for key, value in written.items():
        try:
            there = with_variables(f"file_mounts.{key}", key, variables)
            _read_bucket(found, there, value, variables, places)
        except InvalidValue as error:
            found.wrong.append(error)
    return found


def with_variables(name: str, text: str, variables: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` are values of `envs`, as SkyPilot has it."""

    def fill(match: re.Match[str]) -> str:
        known = variables.get(match[1] or match[2])
        if known is None:
            raise InvalidValue(name, text, f"with variables of envs alone; {match[0]} is none")
        return known

    return VARIABLE.sub(fill, text)


def find_path(text: str, places: MountPlaces) -> Path | None:
    """A path of this machine: relative to the first of `places` where it exists."""
    for base in places.bases:
        try:
            path = base / Path(text).expanduser()
            if places.exists(path):
                return path.resolve()
        except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a zero byte
            continue
    return None


def _read_bucket(found: Mounts, there: str, bucket: Bucket, variables: Mapping[str, str], places: MountPlaces) -> None:
    key = f"file_mounts.{there}"
    if bucket.mode.upper() not in MODES:
        raise InvalidValue(f"{key}.mode", bucket.mode, f"one of {', '.join(MODES)}")
    writes = bucket.mode.upper() != "COPY"
    for at, source in _sources(key, there, bucket, variables):
        found.given[at] = _whole(key, source, places)
        if "://" in source:
            found.kept += [at] if writes else []
        elif writes:
            found.notes.append(f"{key}: its files are brought to the node; what is written there stays on the node")
    if bucket.source is None and writes:
        found.new.append(there)
    if bucket.source is None and bucket.store is None:
        found.notes.append(f"{key}: no store is named, so it is the bucket {found.given[there]}")
    if not bucket.persistent:
        found.notes.append(f"{key}: no bucket is deleted, though persistent is false")


def _sources(key: str, there: str, bucket: Bucket, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Sources of each path: the bucket, a path, or each of several paths below it."""
    given = bucket.source
    if given is None:
        if not bucket.name:
            raise InvalidValue(key, "no source and no name", "a source, or the name of a bucket")
        store = with_variables(f"{key}.store", bucket.store or "s3", variables).lower()
        yield there, f"{SCHEMES.get(store, store)}://{with_variables(f'{key}.name', bucket.name, variables)}"
    elif isinstance(given, str):
        yield there, with_variables(f"{key}.source", given, variables)
    else:
        for text in given:
            source = with_variables(f"{key}.source", text, variables)
            yield f"{there.rstrip('/')}/{Path(source).name}", source


def _whole(key: str, source: str, places: MountPlaces) -> str:
    """A URI of a store that nodes can ask, a local path as an absolute one that exists."""
    scheme, separator, _ = source.partition("://")
    if separator and scheme not in STORES:
        raise InvalidValue(key, source, f"a bucket of a store that can be asked: {', '.join(STORES)}")
    if separator:
        return source
    if not source.strip() or (found := find_path(source, places)) is None:
        raise InvalidValue(key, source, f"a file or folder that exists, or a URI; there is none in {places.bases[0]}")
    return str(found)
