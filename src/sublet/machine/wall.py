"""The clocks of a machine. One of them never goes back; the other is set by people."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Wall(Protocol):
    """The clocks of one process."""

    def monotonic(self) -> float:
        """Seconds since some moment, the same one for as long as the process lives. The clock for timers."""

    def unix(self) -> float:
        """Seconds since 1970, as far as anybody has set the clock right. It may jump, so nothing waits by it."""

    def since_boot(self) -> tuple[str, float]:
        """(name of this boot of the machine, seconds since then, sleep included); ("", 0.0) where it is unknown."""


class _MachineWall:
    """The clocks of this machine."""

    monotonic = staticmethod(time.monotonic)  # without a call of ours: it is asked several times a step

    def unix(self) -> float:
        return time.time()

    def since_boot(self) -> tuple[str, float]:
        try:
            return BOOT_ID.read_text(encoding="utf-8").strip(), time.clock_gettime(time.CLOCK_BOOTTIME)
        except (OSError, AttributeError):  # not on this system
            return "", 0.0


WALL: Wall = _MachineWall()


def iso_utc(wall: Wall) -> str:
    """The time of day for people and for logs, to the millisecond."""
    return datetime.fromtimestamp(wall.unix(), UTC).isoformat(timespec="milliseconds")
