"""What the AWS provider writes down before and after every launch, so that no crash makes it forget an instance.

`<node>.json` states the intent before RunInstances, with all that the request says: a repeated request must be the
same to the letter, or EC2 refuses its client token. The instance follows when EC2 has named it. `regions.json` keeps
every region that was ever used, because an instance may be left in one that is no longer asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sublet.runtime.private import make_private

__all__ = ["NodeRecord", "Records", "client_token", "write_whole"]


def client_token(token: str, zone: str) -> str:
    """What makes a repeated launch the same one: 64 ASCII characters, the most that EC2 takes."""
    return hashlib.sha256(f"{token} {zone}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node. `instance` is "" while EC2 has not named one."""

    node_id: str
    offer_id: str
    token: str
    region: str
    zone: str  # its id; "" = wherever EC2 likes
    began_s: float  # cloud time of the order
    expires_unix: int  # as the tag says
    asked_s: float = -1.0  # cloud time of the last RunInstances; below 0 = none was sent
    instance: str = ""
    home: str = ""  # as the tag says: which directory it was asked for from
    renewed_unix: int = 0  # the latest expiry that we have asked EC2 to write; 0 = that of the launch

    @property
    def known_unix(self) -> int:
        """The latest expiry that this directory knows of: a tag beyond it was written from elsewhere."""
        return max(self.expires_unix, self.renewed_unix)


class Records:
    """The folder `aws` of a state directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_private(folder / "nodes")

    def write(self, record: NodeRecord) -> None:
        """On disk when this returns."""
        write_whole(self._path(record.node_id), json.dumps(asdict(record)))

    def remove(self, node_id: str) -> None:
        """It does not exist."""
        self._path(node_id).unlink(missing_ok=True)

    def read(self) -> dict[str, NodeRecord]:
        """All that is written down; a file that cannot be read is set aside: tags tell what it would have."""
        found: dict[str, NodeRecord] = {}
        for path in sorted((self._folder / "nodes").glob("*.json")):
            try:
                record = NodeRecord(**json.loads(path.read_text(encoding="utf-8")))
                found[record.node_id] = record
            except (ValueError, TypeError):
                path.rename(path.with_suffix(".damaged"))
        return found

    def regions(self, used: Iterable[str]) -> set[str]:
        """Every region ever used, these among them."""
        path = self._folder / "regions.json"
        try:
            known = set(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            known = set()
        together = known | set(used)
        if together != known:
            write_whole(path, json.dumps(sorted(together)))
        return together

    def _path(self, node_id: str) -> Path:
        return self._folder / "nodes" / f"{node_id}.json"


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all, for the owner's eyes only, and on disk when this returns."""
    draft = path.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
