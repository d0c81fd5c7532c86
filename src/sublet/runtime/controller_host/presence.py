"""Processes in the state directory of a controller host: a controller, its watchdog, a laptop that asks."""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path

__all__ = ["CONTROLLER", "DESK", "KEEPER", "is_held", "serving_pid"]

CONTROLLER, KEEPER, DESK = "controller.lock", "watchdog.lock", "desk.lock"
PROGRAM = b"sublet.api.main"  # a word of a controller's command line


def is_held(folder: Path, name: str) -> bool:
    """Whether a process holds this lock. A look delays only a process that takes it just now."""
    if not (folder / name).exists():
        return False
    how = fcntl.LOCK_EX if name == DESK else fcntl.LOCK_SH  # several may be at the desk, and share it
    with (folder / name).open("a") as lock:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def serving_pid(folder: Path) -> int | None:
    """The controller that has said where it listens; None where none serves, or another process has its number."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        pid = int(json.loads((folder / "controller.json").read_text(encoding="utf-8"))["pid"])
        if PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    return None
