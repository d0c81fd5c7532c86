"""A number for each box, from which all its names follow; a number whose box has died is cleared before it is used.

The lock of a number is held as long as the process that has it lives. So a number whose name can be locked is a
leftover, with no owner.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import IO

PREFIX = "sbx"  # of every name: sbx7 is the bridge of box 7, sbx7h3 the network of its third host
HOME = Path("/run/sublet-box")
NUMBERS = range(1, 255)
NAME = re.compile(rf"{PREFIX}(\d+)(?:h\d+)?$")
TOOLS = ("ip", "unshare", "nsenter", "mount", "pivot_root", "setpriv")


class NoBox(Exception):
    """Hosts cannot be made here, and why."""


class Claim:
    """The number is ours until `give_up`."""

    def __init__(self, number: int, lock: IO[str]) -> None:
        self.number, self._lock = number, lock
        self.folder = HOME / str(number)

    @property
    def bridge(self) -> str:
        """The name of its network."""
        return f"{PREFIX}{self.number}"

    def clear(self) -> None:
        """Remove whatever has its names."""
        links, spaces = _names("link"), _names("netns")
        for space in [name for name in spaces if _number(name) == self.number]:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)  # noqa: S603, S607 - ours
        for link in [name for name in links if _number(name) == self.number]:
            subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)  # noqa: S603, S607 - ours
        shutil.rmtree(self.folder, ignore_errors=True)

    def give_up(self) -> None:
        """Nothing is left of it."""
        self.clear()
        self._lock.close()


def claim() -> Claim:
    """The first number that is free, once everything that dead boxes left is gone; NoBox where none can be made."""
    if os.geteuid():
        raise NoBox("hosts in namespaces need root")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise NoBox(f"hosts in namespaces need {', '.join(missing)} (iproute2, util-linux)")
    HOME.mkdir(mode=0o700, exist_ok=True)
    left = {_number(name) for name in (*_names("link"), *_names("netns"))}
    left |= {int(path.name) for path in HOME.iterdir() if path.name.isdigit()}
    found: Claim | None = None
    for number in NUMBERS:
        if (found is None or number in left) and (lock := _lock(number)) is not None:
            here = Claim(number, lock)
            if found is None:
                here.clear()
                found = here
            else:
                here.give_up()
    if found is None:
        raise NoBox(f"{len(NUMBERS)} boxes are there already")
    found.folder.mkdir(mode=0o700)
    return found


def _lock(number: int) -> IO[str] | None:
    """None where it is taken."""
    file = (HOME / f"{number}.lock").open("a", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _number(name: str) -> int:
    found = NAME.fullmatch(name)
    return int(found[1]) if found else -1


def _names(kind: str) -> list[str]:
    """Names of all links or network namespaces that there are and could be ours."""
    command = ["ip", "netns", "list"] if kind == "netns" else ["ip", "-o", "link"]
    lines = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()  # noqa: S603 - ours
    words = [line.split()[0 if kind == "netns" else 1] for line in lines if line.strip()]
    names = [word.rstrip(":").partition("@")[0] for word in words]
    return [name for name in names if _number(name) >= 0]
