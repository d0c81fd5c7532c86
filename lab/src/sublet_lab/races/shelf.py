"""An object store in memory, as S3 answers: whole objects, conditions on a write, versions that are made of content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sublet.machine.objects import Content, Found, Overtaken, Version


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    changed_s: float

    @property
    def version(self) -> Version:
        return {"e_tag": hashlib.md5(self.data, usedforsecurity=False).hexdigest()}


class _Reading:
    """An object as it was when it was opened."""

    def __init__(self, data: bytes) -> None:
        self._rest, self._size = memoryview(data), len(data)

    @property
    def size(self) -> int:
        return self._size

    def readinto(self, memory: memoryview, /) -> int:
        count = min(len(memory), len(self._rest))
        memory[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Shelf:
    """All that was put, one request after the other."""

    uri = "s3://races/job"

    def __init__(self, unix_s: Callable[[], float]) -> None:
        self._unix_s = unix_s
        self.objects: dict[str, _Object] = {}

    def put(self, key: str, content: bytes | memoryview, *, new: bool = False, over: Version | None = None) -> Version:
        """If there is none yet, or still that one."""
        there = self.objects.get(key)
        if (new and there is not None) or (over is not None and (there is None or there.version != over)):
            raise Overtaken(self.uri, key)
        self.objects[key] = _Object(bytes(content), self._unix_s())
        return self.objects[key].version

    def get(self, key: str) -> Content:
        """All of it."""
        found = self._find(key)
        return Content(found.data, found.version)

    def open(self, key: str) -> _Reading:
        """All of it, too: an object never changes under its reader."""
        return _Reading(self._find(key).data)

    def list(self, prefix: str = "") -> list[Found]:
        """In order of the keys."""
        begins = prefix and f"{prefix}/"
        return [
            Found(key, len(each.data), each.changed_s)
            for key, each in sorted(self.objects.items())
            if key.startswith(begins)
        ]

    def delete(self, keys: Iterable[str]) -> None:
        """Whether they are there or not."""
        for key in keys:
            self.objects.pop(key, None)

    def data(self, key: str) -> bytes | None:
        """For a look from outside."""
        found = self.objects.get(key)
        return None if found is None else found.data

    def keys(self) -> Sequence[str]:
        """For a look from outside."""
        return sorted(self.objects)

    def _find(self, key: str) -> _Object:
        if key not in self.objects:
            raise FileNotFoundError(2, "there is no such object", f"{self.uri}/{key}")
        return self.objects[key]
