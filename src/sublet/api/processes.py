"""Whether the process of an address is stopped."""

from __future__ import annotations

from pathlib import Path

__all__ = ["process_is_stopped"]

STOPPED = ("T", "t")  # as ps shows it: by a signal, by a debugger


def process_is_stopped(pid: int) -> bool:
    """Whether it lives and does nothing until it is told to go on; False where it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] in STOPPED
    except (OSError, IndexError):
        return False
