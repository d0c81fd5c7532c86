"""Objects in a shared store: whole or not there, and overwritten only by a writer that saw the last one.

An object store has no folders, no locks and no rename. Its means is a condition on a write: `new` (there is no such
object yet) and `over` (there is still the one that we saw). Among all that write so at once, one wins, and the others
are told (`Overtaken`). `sublet.machine.remote` opens such a store by its URI.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from sublet.errors import SubletError

Version = Mapping[str, str]  # which write an object is of, in the store's own words


class StoreFailed(SubletError):
    """A store did not do what it was asked; nothing is known about the objects in it. `lasting`: nor will it."""

    def __init__(self, uri: str, why: str, *, hint: str, lasting: bool = False) -> None:
        self.uri, self.why, self.hint, self.lasting = uri, why, hint, lasting
        super().__init__(f"the store {uri} did not do it: {why}\n  next: {hint}")


class Torn(StoreFailed):
    """An object became another one while it was read: what came of both is neither. It can be read again."""

    def __init__(self, uri: str, key: str) -> None:
        self.key = key
        super().__init__(uri, f"another has written {key} while it was read", hint="read it again when it is written")


class Overtaken(SubletError):
    """The condition of a write does not hold: another was quicker."""

    def __init__(self, uri: str, key: str) -> None:
        self.uri, self.key = uri, key
        super().__init__(f"another has written {key} in {uri} meanwhile")


class Replaced(SubletError):
    """An object is not what it was when it was listed."""

    def __init__(self, uri: str, key: str, why: str) -> None:
        self.uri, self.key, self.why = uri, key, why
        super().__init__(
            f"{uri}/{key} was replaced, cut short or taken away while it was in use: {why}\n"
            "  next: put it back as it was; what is to be trained on may not change before training ends"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """An object in a list."""

    key: str
    size: int
    changed_s: float  # since 1970, by the clock of the store
    tag: str = ""  # another one for each content, where the store says so


@dataclass(frozen=True, slots=True)
class Content:
    """A small object, with what it takes to write over just this one."""

    data: bytes
    version: Version


class ObjectReading(Protocol):
    """An object that is being read from its beginning."""

    @property
    def size(self) -> int:
        """In bytes."""

    def readinto(self, memory: memoryview, /) -> int | None:
        """Some of what comes next; how many bytes, 0 at its end. Torn where it is no longer what was opened."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Objects(Protocol):
    """All objects under one URI. FileNotFoundError where there is none, StoreFailed if the store fails."""

    @property
    def uri(self) -> str:
        """The prefix of the keys, as people write it; without a slash at its end."""

    def put(self, key: str, content: bytes | memoryview, *, new: bool = False, over: Version | None = None) -> Version:
        """In one go; if there must be none yet, or still this one: Overtaken if that is not so."""

    def get(self, key: str) -> Content:
        """All of a small one."""

    def open(self, key: str) -> ObjectReading:
        """To be read."""

    def list(self, prefix: str = "") -> list[Found]:
        """All whose keys begin with the folder `prefix`, in order of their keys."""

    def delete(self, keys: Iterable[str]) -> None:
        """Whether they are there or not."""


class FileObjects(Objects, Protocol):
    """... which are files of this machine as well, as far as somebody brings them there and back."""

    def upload(self, key: str, path: Path) -> str:
        """A file as it is read now, over whatever was there; its tag."""

    def look(self, key: str) -> Found:
        """The object as a list would show it."""

    def walk(self) -> Iterator[Found]:
        """All, as the store tells them: a caller that has seen enough may stop."""
