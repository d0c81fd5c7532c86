"""A machine on which no controller lives costs as much as one with it: after ten minutes it turns itself off.

Its disk stays, and `sublet up --on aws` or `sublet down` start it again. As long as a laptop asks something of it, or a
watchdog runs there, it stays on.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from sublet.machine.wall import WALL, Wall
from sublet.runtime.controller_host.presence import CONTROLLER, DESK, KEEPER, is_held

__all__ = ["ANCHORED", "IDLE_S", "is_left_alone", "main", "turn_off"]

ANCHORED = ".sublet-on_host"  # in its home: this machine was rented for a controller, and may be turned off
IDLE_S = 600.0
LOOK_S = 1.0


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
