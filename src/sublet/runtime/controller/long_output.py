"""How much of what workers print is kept: the end of each file, and of a job no more than so much."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

__all__ = ["MOST_BYTES", "MOST_OF_JOB", "SLACK", "before", "cut_log", "is_before", "keep_below"]

MOST_BYTES = 64 << 20  # of one worker; as many of what came before lie beside it
MOST_OF_JOB = 512 << 20  # of all workers that a job ever had
SLACK = 4_096  # a note that it was longer
CHUNK = 1 << 20


def before(path: Path) -> Path:
    """Where the end of what was cut off lies: a log as well, so that secrets are starred out there too."""
    return path.with_name(f"{path.name.removesuffix('.log')}.before.log")


def is_before(path: Path) -> bool:
    """Whether it is such an end, which nobody writes on."""
    return path.name.endswith(".before.log")


def cut_log(path: Path, most: int = MOST_BYTES) -> bool:
    """Whether it was too long: then it begins anew, and its last bytes lie beside it. Its writers append."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size <= most + SLACK:
            return False
        end = _end_of(file, facts.st_size, most)
        os.ftruncate(file, 0)  # first: it makes room, and a fast writer gets no further while its end is written
        with contextlib.suppress(OSError):  # no room: it is lost
            _write(before(path), end)
        note = f"(longer than {most >> 20} MiB: the rest of what came before lies in {before(path).name})\n"
        with contextlib.suppress(OSError):
            os.write(file, note.encode())
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def keep_below(folder: Path, alive: Collection[Path], most: int = MOST_OF_JOB) -> None:
    """Remove the oldest logs of a folder, but of those `alive`, until all are below so many bytes."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.glob("*.log"):
            facts = path.lstat()
            found.append((facts.st_mtime_ns, path, facts.st_size))
    total = sum(size for _, _, size in found)
    for _, path, size in sorted(found):
        if total <= most:
            return
        if path not in alive:
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _end_of(file: int, size: int, most: int) -> memoryview:
    """From the begin of a line on, where there is one: half a secret is one that nobody stars out."""
    end, at = bytearray(), size - most
    while at < size and (data := os.pread(file, min(CHUNK, size - at), at)):
        end += data
        at += len(data)
    return memoryview(end)[end.find(b"\n", 0, CHUNK) + 1 :]


def _write(path: Path, data: memoryview) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            data = data[os.write(file, data[:CHUNK]) :]
    finally:
        os.close(file)
