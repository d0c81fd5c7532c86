"""Facts about nodes that providers write down, a file for each: what is in a folder of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sublet.machine.files import FILES, Files

Fact = TypeVar("Fact")


class _Claim(Protocol):
    """A node that we hold or have asked for: a dataclass."""

    @property
    def node_id(self) -> str: ...
    @property
    def began_s(self) -> float: ...


Claim = TypeVar("Claim", bound=_Claim)


class WrittenClaims(Generic[Claim]):
    """Claims of one state directory, each written before the order: no answer can be lost."""

    def __init__(self, folder: Path, kind: Callable[..., Claim], *, files: Files = FILES) -> None:
        self._folder, self._kind, self._files = folder, kind, files
        files.make_folder(folder)

    def write(self, claim: Claim) -> None:
        """Atomically, and on disk when this returns."""
        facts: Any = claim
        self._files.write(self._path(claim.node_id), json.dumps(asdict(facts)).encode())

    def remove(self, node_id: str) -> None:
        """It is ours no longer."""
        self._files.remove(self._path(node_id))

    def read(self) -> list[Claim]:
        """All claims; a file that cannot be read hinders nothing."""
        return sorted(read_written(self._files, self._folder, self._kind), key=lambda claim: claim.began_s)

    def _path(self, node_id: str) -> Path:
        return self._folder / f"{node_id}.json"


def read_written(files: Files, folder: Path, fact: Callable[..., Fact]) -> list[Fact]:
    """All of them, by name; a file that cannot be read is set aside, and hinders nothing."""
    found = []
    for name in files.names(folder):
        if not name.endswith(".json"):
            continue
        path = folder / name
        data = files.read(path)
        try:
            found.append(fact(**json.loads(data)))
        except (ValueError, TypeError):
            with contextlib.suppress(OSError):  # no room: it stays where it is, and is set aside another time
                files.write(path.with_suffix(".damaged"), data)
                files.remove(path)
    return found
