"""Which agents live, as the machine itself knows: by a lock that each holds as long as it lives, and by its processes.

The lock is on the node's life file, in which the agent writes which process it is. So even a node whose rent was cut
short by a crash is found: a lock that can be taken shows that no agent is there.
"""

from __future__ import annotations

import fcntl
import os
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from sublet.runtime.agent import processes
from sublet.runtime.agent.template import life_of

__all__ = ["LIVES", "Life", "Lives", "new_life"]

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
