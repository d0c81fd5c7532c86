"""The state directory is its owner's alone: 0700, and every file in it 0600, however it was made."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")


def home_of(state_dir: Path) -> str:
    """A mark of this directory on this machine, to tell what is rented from here from what a copy rents."""
    try:
        machine = MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine = ""
    place = f"{machine} {os.uname().nodename} {state_dir.resolve()}"
    return hashlib.sha256(place.encode()).hexdigest()[:16]


OWNER_ONLY = 0o600
OWNERS_FOLDER = 0o700
OTHERS = 0o077  # bits of everybody else
MOST_ENTRIES = 20_000  # that a start looks at: some tenths of a second; the directory above them all is closed anyhow


def private_file(path: Path) -> None:
    """Make it if it is not there; only its owner may read it from now on. A file of another user stays as it is."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY))
    except FileExistsError:
        with suppress(PermissionError):
            path.chmod(OWNER_ONLY)


def make_private(path: Path) -> None:
    """Make it, and what is missing above it, for its owner alone; one that is there stays as it is."""
    if not path.is_dir():
        make_private(path.parent)
        path.mkdir(mode=OWNERS_FOLDER, exist_ok=True)


def private_folder(path: Path) -> None:
    """Make it, or close it: what lies in it may have been made by a version, or under a umask, that let others look."""
    path.mkdir(parents=True, exist_ok=True, mode=OWNERS_FOLDER)
    path.chmod(OWNERS_FOLDER)
    looked, folders = 0, deque([str(path)])
    while folders and looked < MOST_ENTRIES:  # what is near the top first
        with suppress(FileNotFoundError, PermissionError), os.scandir(folders.popleft()) as entries:
            for entry in islice(entries, MOST_ENTRIES - looked):
                looked += 1
                if _close(entry):
                    folders.append(entry.path)


def _close(entry: os.DirEntry[str]) -> bool:
    """To all but its owner; whether it is a folder, too. Links are not followed."""
    with suppress(FileNotFoundError, PermissionError):  # it went meanwhile; it is not ours
        mode = entry.stat(follow_symlinks=False).st_mode
        folder = stat.S_ISDIR(mode)
        if mode & OTHERS and (folder or stat.S_ISREG(mode)):
            os.chmod(entry.path, stat.S_IMODE(mode) & OWNERS_FOLDER)  # noqa: PTH101 - an entry is no Path
        elif stat.S_ISSOCK(mode):
            os.chmod(entry.path, OWNER_ONLY)  # noqa: PTH101 - as above
        return folder
    return False
