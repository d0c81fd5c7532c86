"""Things of an agent on a machine that outlive a process: a record before one is there, none when it is gone."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "SUBLET_RECORDS"  # the variable by which an agent tells where they are


def folder() -> Path:
    """The folder of all records of this user, whatever a job calls its home."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".sublet" / "containers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A container or an image, and the agent whose it is."""

    engine: str
    name: str
    is_image: bool
    agent: int
    born: int

    @classmethod
    def of_container(cls, engine: str, name: str, agent: int, born: int) -> Record:
        """One."""
        return cls(engine=engine, name=name, is_image=False, agent=agent, born=born)

    @classmethod
    def of_image(cls, engine: str, name: str, agent: int, born: int) -> Record:
        """One."""
        return cls(engine=engine, name=name, is_image=True, agent=agent, born=born)

    def beside(self, ending: str) -> Path:
        """A file that goes with it."""
        return folder() / f"{self.name.replace(':', '-')}{ending}"

    def write(self) -> None:
        """It may be there from now on."""
        self.beside(".json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    def is_there(self) -> bool:
        """It may be."""
        return self.beside(".json").exists()

    def forget(self) -> None:
        """It is gone."""
        for ending in (".env", ".pid", ".json"):
            self.beside(ending).unlink(missing_ok=True)


def records() -> Iterator[Record]:
    """All of them."""
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            yield Record(**json.loads(path.read_text(encoding="utf-8")))
