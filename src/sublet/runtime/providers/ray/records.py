"""Which Ray node each of our nodes is on, in files written before a steward is asked: no answer can be lost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sublet.machine.files import FILES, Files
from sublet.runtime.providers.written import read_written

__all__ = ["Claim", "Claims"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A Ray node that we hold, or have asked for (`pid` 0)."""

    node_id: str
    offer_id: str
    token: str
    ray_node: str
    began_s: float  # cloud time
    host: str = ""
    port: int = 0  # of its life line
    pid: int = 0  # of the agent, over there


class Claims:
    """The folder of all claims of one state directory."""

    def __init__(self, folder: Path, *, files: Files = FILES) -> None:
        self._folder, self._files = folder, files
        files.make_folder(folder)

    def write(self, claim: Claim) -> None:
        """Atomically, and on disk when this returns."""
        self._files.write(self._path(claim.node_id), json.dumps(asdict(claim)).encode())

    def remove(self, node_id: str) -> None:
        """It is ours no longer."""
        self._files.remove(self._path(node_id))

    def read(self) -> list[Claim]:
        """All that is written down; a file that cannot be read stands in nobody's way."""
        return sorted(read_written(self._files, self._folder, Claim), key=lambda claim: claim.began_s)

    def _path(self, node_id: str) -> Path:
        return self._folder / f"{node_id}.json"
