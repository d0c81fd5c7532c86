"""Which state directory on which machine a controller lives in: a copy of it elsewhere is another one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["home_of"]

MACHINE_ID = Path("/etc/machine-id")


def home_of(state_dir: Path) -> str:
    """A mark of this directory on this machine, to tell what is rented from here from what a copy rents."""
    try:
        machine = MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine = ""
    place = f"{machine} {os.uname().nodename} {state_dir.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]
