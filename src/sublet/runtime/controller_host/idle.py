"""A machine on which no controller lives costs as much as one with it: after ten minutes it turns itself off.

Its disk stays, and `sublet up --on aws` or `sublet down` start it again. As long as a laptop asks something of it, or a
watchdog runs there, it stays on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from sublet.machine.wall import WALL, Wall

CONTROLLER, KEEPER, DESK = "controller.lock", "keeper.lock", "desk.lock"
PROGRAM = b"sublet.api.main"  # a word of a controller's command line
ANCHORED = ".sublet-on_host"  # in its home: this machine was rented for a controller, and may be turned off
IDLE_S = 600.0
LOOK_S = 1.0


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


def is_left_alone(folder: Path, wall: Wall = WALL, look_s: float = LOOK_S) -> bool:
    """Returns when it is known: True after ten minutes without a watchdog or request, False once there is one."""
    pause, since_s, seen = threading.Event(), wall.monotonic(), _last_asked(folder)
    while not (is_held(folder, CONTROLLER) or is_held(folder, KEEPER)):
        asked = _last_asked(folder)
        if asked != seen or is_held(folder, DESK):
            since_s, seen = wall.monotonic(), asked
        elif wall.monotonic() - since_s >= IDLE_S:
            return True
        pause.wait(look_s)
    return False


def turn_off(why: str) -> None:
    """The machine is stopped, and its disk stays."""
    if not (Path.home() / ANCHORED).exists():
        return
    print(f"{why}: the machine is stopped", flush=True)  # noqa: T201 - the watchdog's log
    for command in (("sudo", "-n", "shutdown", "-h", "now"), ("shutdown", "-h", "now")):
        with contextlib.suppress(OSError):
            if subprocess.run(command, check=False).returncode == 0:  # noqa: S603 - our own words
                return


def main(folder: Path) -> None:
    """For a controller that ended, or was never there."""
    if is_left_alone(folder):
        turn_off(f"no controller lives here, and no request came for {IDLE_S:g} s")


def _last_asked(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return (folder / DESK).stat().st_mtime_ns
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    main(Path(sys.argv[1]))
