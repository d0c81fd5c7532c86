"""Records of the local provider on every node, so that a later controller finds all that exists.

`<node>.json` states the intent before the fork and the process after it. `<node>.life` is locked by the agent for as
long as it lives and holds its pid (`lives.py`).

The lock is on the node's life file, in which the agent writes which process it is. So even a node whose rent was cut
short by a crash is found: a lock that can be taken shows that no agent is there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from sublet.machine.files import FILES, Files
from sublet.runtime.agent import processes
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.outside import sweep
from sublet.runtime.agent.processes import Process
from sublet.runtime.agent.template import life_of
from sublet.runtime.providers.written import read_written

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Life(NamedTuple):
    """The content of a life file."""

    held: bool  # an agent lives, or is just being born
    process: tuple[int, int] | None  # its number and its start, once it has written them down


class Lives(Protocol):
    """The lives on one machine."""

    @property
    def boot(self) -> str:
        """The boot of the machine: numbers of processes of another boot mean nothing."""

    def look(self, life: Path) -> Life:
        """The life of the agent with this life file."""

    def alive(self, pid: int, start: int) -> bool:
        """Whether this very process still runs."""

    def runs(self, pid: int, start: int) -> bool:
        """Whether it does, and is not on its way out, with its lock let go of."""

    def members(self, pid: int, start: int) -> list[processes.Process]:
        """The processes of the node whose agent this is, that still run; the agent first."""


class _MachineLives:
    """The lives on this machine."""

    @cached_property
    def boot(self) -> str:
        return BOOT_ID.read_text(encoding="utf-8").strip()

    def look(self, life: Path) -> Life:
        try:
            descriptor = os.open(life, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return Life(held=False, process=None)
        written = life_of(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Life(held=True, process=written)
        else:
            return Life(held=False, process=written)
        finally:
            os.close(descriptor)

    def alive(self, pid: int, start: int) -> bool:
        return processes.alive(pid, start)

    def runs(self, pid: int, start: int) -> bool:
        return processes.runs(pid, start)

    def members(self, pid: int, start: int) -> list[processes.Process]:
        return processes.instance(pid, start)


LIVES: Lives = _MachineLives()


def new_life(life: Path) -> int:
    """An empty life file, locked; to be handed to the agent and closed."""
    descriptor = os.open(life, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


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

    def __init__(self, folder: Path, *, files: Files = FILES, lives: Lives = LIVES) -> None:
        self._folder, self._files, self._lives = folder, files, lives
        self.boot = lives.boot
        files.make_folder(folder)

    def path(self, node_id: str, kind: str) -> Path:
        """A file of the node: json, life, log, notice; pem where it has a key."""
        return self._folder / f"{node_id}.{kind}"

    def write(self, record: NodeRecord) -> None:
        """Atomically. Not forced to the disk: what takes the power takes the node as well."""
        self._files.write(self.path(record.node_id, "json"), json.dumps(asdict(record)).encode(), durable=False)

    def remove(self, node_id: str) -> None:
        """It no longer exists; its log stays. Remove files that came for jobs, and their output: secrets among it."""
        kept = self.path(node_id, "notice.files")  # by its agent
        sweep(kept, self._files, DISK)
        self._files.remove_tree(kept)
        # The record last: as long as it is there, the rest is looked at.
        for kind in ("pem", "notice", "life", "json.new", "json"):
            self._files.remove(self.path(node_id, kind))

    def read(self) -> list[NodeRecord]:
        """All records; a file that cannot be read hinders nothing."""
        written = read_written(self._files, self._folder, NodeRecord)
        return sorted(written, key=lambda record: record.began_s)

    def damaged(self) -> list[NodeRecord]:
        """Nodes whose records cannot be read: their names, and where an agent wrote it, its process.

        Such a node may live, and train.
        """
        known = {record.node_id for record in self.read()}
        paths = [Path(name) for name in self._files.names(self._folder)]
        names = {path.stem for path in paths if path.suffix in (".json", ".damaged")} - known
        blank = [NodeRecord(node_id=name, offer_id="", token="", began_s=0.0) for name in sorted(names)]
        return [self.with_process(record) for record in blank]

    def is_held(self, node_id: str) -> bool:
        """Whether an agent lives, or is just being born, for this node."""
        return self._lives.look(self.path(node_id, "life")).held

    def with_process(self, record: NodeRecord) -> NodeRecord:
        """The record with the process that its agent has written down, if it has."""
        if record.pid:
            return record
        life = self._lives.look(self.path(record.node_id, "life")).process
        return replace(record, pid=life[0], start=life[1], boot=self.boot) if life else record

    def is_alive(self, record: NodeRecord) -> bool:
        """Whether its agent still runs."""
        return record.boot == self.boot and self._lives.alive(record.pid, record.start)

    def members(self, record: NodeRecord) -> list[Process]:
        """The processes of the node that still run."""
        return self._lives.members(record.pid, record.start) if record.pid and record.boot == self.boot else []

    def is_anothers(self, record: NodeRecord) -> bool:
        """Whether its agent lives and was started from another directory, of which this one is a copy."""
        if record.boot != self.boot or self.is_held(record.node_id):
            return False
        # The lock first: an agent that ends lets go of it while it is still listed.
        return self._lives.runs(record.pid, record.start)
