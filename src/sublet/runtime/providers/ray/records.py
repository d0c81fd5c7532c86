"""Which Ray node each of our nodes is on, in files written before a steward is asked: no answer can be lost."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, claim: Claim) -> None:
        """Atomically, and on disk when this returns."""
        draft = self._folder / f"{claim.node_id}.new"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(claim), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / f"{claim.node_id}.json")

    def remove(self, node_id: str) -> None:
        """It is ours no longer."""
        (self._folder / f"{node_id}.json").unlink(missing_ok=True)

    def read(self) -> list[Claim]:
        """All that is written down; a file that cannot be read stands in nobody's way."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found.append(Claim(**json.loads(path.read_text(encoding="utf-8"))))
            except (ValueError, TypeError):
                path.rename(path.with_suffix(".damaged"))
        return sorted(found, key=lambda claim: claim.began_s)
