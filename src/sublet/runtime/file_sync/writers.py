"""Which files are open for writing on this machine, as far as its kernel tells this user (/proc)."""

from __future__ import annotations

import contextlib
import os
import stat

__all__ = ["open_for_writing"]


def open_for_writing(*, besides: int | None = None) -> set[tuple[int, int]]:
    """Device and number of each, since names differ between containers; not by processes of the group `besides`."""
    found: set[tuple[int, int]] = set()
    for pid in os.listdir("/proc"):  # noqa: PTH208 - names are all it takes
        with contextlib.suppress(OSError):  # it has ended
            if pid.isdigit() and os.getpgid(int(pid)) != besides:
                _add(found, f"/proc/{pid}")
    return found


def _add(found: set[tuple[int, int]], process: str) -> None:
    try:
        numbers = os.listdir(f"{process}/fd")  # noqa: PTH208 - as above
    except OSError:
        return  # it has ended, or is another user's
    for number in numbers:
        try:
            with open(f"{process}/fdinfo/{number}", encoding="ascii") as facts:  # noqa: PTH123 - read by the thousand
                flags = next((int(line.split()[1], 8) for line in facts if line.startswith("flags:")), 0)
            if flags & os.O_ACCMODE == os.O_RDONLY:
                continue
            seen = os.stat(f"{process}/fd/{number}")  # noqa: PTH116 - as above
        except OSError:
            continue
        if stat.S_ISREG(seen.st_mode):
            found.add((seen.st_dev, seen.st_ino))
