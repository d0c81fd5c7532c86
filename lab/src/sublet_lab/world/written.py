"""All that the controllers of a world ever wrote: what is in the store, and what was cut from it and put away.

A     whatever was cut from the log is in the archive: no event is missing
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sublet.runtime.archive import Kept
from sublet_lab.world.disk import Disk

COLUMNS = {Kept.EVENTS: "line", Kept.HISTORY: "at_s, at, kind, job_id, node_id, text"}


def written(disk: Disk, files: Mapping[Path, bytes], kind: Kept) -> dict[int, dict[str, Any]]:
    """By number, in order: events as the log has them, rows of history by the names of their columns."""
    found: dict[int, dict[str, Any]] = {}
    for path in archives(files, kind):
        try:
            lines = gzip.decompress(files[path]).decode().splitlines()
        except (OSError, EOFError, zlib.error):
            continue  # its writer died over it, and has cut nothing: what it was to hold is in the log
        first = int(path.name.removeprefix(f"{kind}-").partition(".")[0])
        found |= {number: json.loads(line) for number, line in enumerate(lines, start=first)}
    names = COLUMNS[kind].split(", ")
    for seq, *values in disk.rows(f"SELECT seq, {COLUMNS[kind]} FROM {kind} ORDER BY seq"):  # noqa: S608 - our own names
        found[seq] = json.loads(values[0]) if kind is Kept.EVENTS else dict(zip(names, values, strict=True))
    return dict(sorted(found.items()))


def archives(files: Mapping[Path, bytes], kind: Kept) -> list[Path]:
    """Its files, oldest first; not what an older backup has left beside them."""
    return sorted(path for path in files if path.name.startswith(f"{kind}-") and ".other-" not in path.name)


def unpacked(data: bytes) -> bytes:
    """The content of a file of the archive; of a damaged one, all that can be read of it."""
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return data


def missing(numbers: Mapping[int, object]) -> list[int]:
    """The missing numbers between 1 and the last."""
    return sorted(set(range(1, max(numbers, default=0) + 1)) - numbers.keys())


def last_event(disk: Disk) -> int:
    """Its number; 0 before the first."""
    return int(disk.rows("SELECT max(seq) FROM events")[0][0] or 0) if disk.has_table("events") else 0


def unanswered(disk: Disk, files: Mapping[Path, bytes]) -> dict[str, str]:
    """Nodes that the log has ordered and says no more of, each with its offer: its reader knows nothing else."""
    found: dict[str, str] = {}
    for facts in written(disk, files, Kept.EVENTS).values() if disk.has_table("events") else ():
        found.pop(facts["event"].get("node_id", ""), None)
        orders = (each for each in facts.get("actions", ()) if each["type"] == "RentNode")
        found |= {each["node_id"]: each["offer_id"] for each in orders}
    return found


def shelved(disk: Disk) -> dict[str, dict[str, Any]]:
    """The jobs on the shelf, each with its facts; none where a program of before has left no shelf."""
    if not disk.has_table("shelf"):
        return {}
    packed = disk.rows("SELECT job_id, packed FROM shelf ORDER BY job_id")
    return {job_id: json.loads(json.loads(zlib.decompress(rows))[1]) for job_id, rows in packed}
