"""The clocks of a machine. One of them never goes back; the other is set by people."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["WALL", "Wall", "iso_utc"]


class Wall(Protocol):
    """Of one process."""

    def monotonic(self) -> float:
        """Seconds since some moment, the same one for as long as the process lives. What is due is measured by it."""

    def unix(self) -> float:
        """Seconds since 1970, as far as anybody has set the clock right. It may jump, so nothing waits by it."""


class _MachineWall:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()


WALL: Wall = _MachineWall()


def iso_utc(wall: Wall) -> str:
    """The time of day for people and for logs, to the millisecond."""
    return datetime.fromtimestamp(wall.unix(), UTC).isoformat(timespec="milliseconds")
