"""Records of the AWS provider before and after every launch, so that no crash makes it forget an instance.

`<node>.json` states the intent before RunInstances, with all that the request says: a repeated request must be the same
to the letter, or EC2 refuses its client token. The instance follows when EC2 has named it. `regions.json` keeps every
region that was ever used, because an instance may be left in one that is no longer asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sublet.machine.files import FILES, Files
from sublet.runtime.providers.written import read_written

__all__ = ["InstanceRecord", "InstanceRecords", "client_token"]


def client_token(token: str, zone: str) -> str:
    """The token that makes a repeated launch the same one: 64 ASCII characters, the most that EC2 takes."""
    return hashlib.sha256(f"{token} {zone}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
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


class InstanceRecords:
    """The folder `aws` of a state directory."""

    def __init__(self, folder: Path, *, files: Files = FILES) -> None:
        self._folder, self._files = folder, files
        files.make_folder(folder / "nodes")

    def write(self, record: InstanceRecord) -> None:
        """On disk when this returns."""
        self._files.write(self._path(record.node_id), json.dumps(asdict(record)).encode())

    def remove(self, node_id: str) -> None:
        """It does not exist."""
        self._files.remove(self._path(node_id))

    def read(self) -> dict[str, InstanceRecord]:
        """All that is written down; a file that cannot be read is set aside: tags tell what it would have."""
        return {record.node_id: record for record in read_written(self._files, self._folder / "nodes", InstanceRecord)}

    def regions(self, used: Iterable[str]) -> set[str]:
        """Every region ever used, these among them."""
        path = self._folder / "regions.json"
        try:
            known = set(json.loads(self._files.read(path)))
        except (OSError, ValueError, TypeError):
            known = set()
        together = known | set(used)
        if together != known:
            self._files.write(path, json.dumps(sorted(together)).encode())
        return together

    def _path(self, node_id: str) -> Path:
        return self._folder / "nodes" / f"{node_id}.json"
