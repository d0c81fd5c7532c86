"""The state directory is its owner's alone: 0700, and every file in it 0600, whoever made it and however."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["OWNER_ONLY", "private_file", "private_folder"]

OWNER_ONLY = 0o600
OWNERS_FOLDER = 0o700


def private_file(path: Path) -> None:
    """Make it if it is not there; nobody else may read it from now on. Somebody else's file stays as it is."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY))
    except FileExistsError:
        with suppress(PermissionError):
            path.chmod(OWNER_ONLY)


def private_folder(path: Path) -> None:
    """Make it, or close it: what lies in it may have been made by a version, or under a umask, that let others look."""
    path.mkdir(parents=True, exist_ok=True, mode=OWNERS_FOLDER)
    path.chmod(OWNERS_FOLDER)
    for entry in os.scandir(path):
        with suppress(FileNotFoundError, PermissionError):  # it went meanwhile; it is not ours
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                os.chmod(entry.path, OWNERS_FOLDER)  # noqa: PTH101 - an entry is no Path
            elif stat.S_ISREG(mode) or stat.S_ISSOCK(mode):
                os.chmod(entry.path, OWNER_ONLY)  # noqa: PTH101
