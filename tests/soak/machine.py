"""Processes as the machine sees them: memory, descriptors, threads, and from when to when a node lived."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Life", "Sample", "lives_from", "sample"]

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at one process."""

    at_s: float  # monotonic
    rss_mb: float
    files: int
    threads: int


def sample(pid: int) -> Sample | None:
    """None where it has ended."""
    with suppress(OSError, ValueError, IndexError):
        folder = Path(f"/proc/{pid}")
        pages = int((folder / "statm").read_text(encoding="ascii").split()[1])
        files = len(os.listdir(folder / "fd"))  # noqa: PTH208 - names are all it takes
        threads = len(os.listdir(folder / "task"))  # noqa: PTH208 - as above
        return Sample(at_s=time.monotonic(), rss_mb=pages * PAGE_BYTES / 1e6, files=files, threads=threads)
    return None


@dataclass(slots=True)
class Life:
    """A node, as its process was seen."""

    node_id: str
    pid: int
    born_s: float  # since the machine booted
    seen_s: float  # as above, the last time
    samples: list[Sample] = field(default_factory=list)

    @property
    def lasted_s(self) -> float:
        """At least so long."""
        return self.seen_s - self.born_s


def lives_from(folder: Path, known: dict[str, Life]) -> list[Life]:
    """Look at all nodes of this state directory; those that live now. New ones are added to `known`."""
    found = []
    for path in folder.glob("*.life"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(path.read_text(encoding="ascii").split()[0])
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            born_s = int(fields[19]) / TICKS_A_SECOND
            if fields[0] == "Z":
                continue
            life = known.setdefault(path.stem, Life(path.stem, pid, born_s, born_s))
            if life.pid == pid and life.born_s == born_s:
                life.seen_s = time.clock_gettime(time.CLOCK_BOOTTIME)
                found.append(life)
    return found
