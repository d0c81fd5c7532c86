"""What the local provider writes down about every node, so that a later controller finds all that exists.

`<node>.json` states the intent before the fork and the process after it. `<node>.life` is locked by the agent for as
long as it lives and holds its pid, so even a node whose rent was cut short by a crash is found: whoever can take the
lock knows that no agent is there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sublet.runtime.agent import processes
from sublet.runtime.agent.template import life_of

__all__ = ["NodeRecord", "Records"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node, as the provider knows it. `pid` 0 = asked for, not known to exist."""

    node_id: str
    offer_id: str
    token: str
    began_s: float
    pid: int = 0
    start: int = 0  # of the process, in clock ticks after boot
    boot: str = ""  # of the machine: pids of another boot mean nothing
    lost_s: float | None = None  # announced end
    gpus: Sequence[str] = ()  # of this machine, that the node has


class Records:
    """The folder of all nodes of one state directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.boot = BOOT_ID.read_text(encoding="utf-8").strip()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, node_id: str, kind: str) -> Path:
        """A file of the node: json, life, log or notice."""
        return self._folder / f"{node_id}.{kind}"

    def write(self, record: NodeRecord) -> None:
        """Atomically. Not forced to the disk: what takes the power takes the node as well."""
        path = self.path(record.node_id, "json")
        draft = self.path(record.node_id, "new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
        draft.replace(path)

    def remove(self, node_id: str) -> None:
        """It no longer exists; its log stays."""
        for kind in ("notice", "life", "new", "json"):  # the record last: as long as it is there, the rest is looked at
            self.path(node_id, kind).unlink(missing_ok=True)

    def read(self) -> list[NodeRecord]:
        """All that is written down; a file that cannot be read stands in nobody's way."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                facts = json.loads(path.read_text(encoding="utf-8"))
                found.append(NodeRecord(**facts))
            except (ValueError, TypeError):
                path.rename(path.with_suffix(".damaged"))
        return sorted(found, key=lambda record: record.began_s)

    def new_life(self, node_id: str) -> int:
        """An empty life file, locked; to be handed to the agent and closed."""
        life = os.open(self.path(node_id, "life"), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return life

    def is_held(self, node_id: str) -> bool:
        """Whether an agent lives, or is just being born, for this node."""
        return self._life(node_id)[0]

    def with_process(self, record: NodeRecord) -> NodeRecord:
        """The record with the process that its agent has written down, if it has."""
        if record.pid:
            return record
        _, life = self._life(record.node_id)
        return replace(record, pid=life[0], start=life[1], boot=self.boot) if life else record

    def members(self, record: NodeRecord) -> list[processes.Process]:
        """The processes of the node that still run."""
        return processes.instance(record.pid, record.start) if record.pid and record.boot == self.boot else []

    def is_anothers(self, record: NodeRecord) -> bool:
        """Whether its agent lives and was started from another directory, of which this one is a copy."""
        members = self.members(record)
        return bool(members) and members[0].pid == record.pid and not self.is_held(record.node_id)

    def _life(self, node_id: str) -> tuple[bool, tuple[int, int] | None]:
        try:
            descriptor = os.open(self.path(node_id, "life"), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False, None
        written = life_of(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, written
        else:
            return False, written
        finally:
            os.close(descriptor)
