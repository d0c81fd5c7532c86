"""Facts about nodes that providers write down, a file for each: what is in a folder of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sublet.machine.files import Files

__all__ = ["read_written"]

Fact = TypeVar("Fact")


def read_written(files: Files, folder: Path, fact: Callable[..., Fact]) -> list[Fact]:
    """All of them, by name; a file that cannot be read is set aside, and stands in nobody's way."""
    found = []
    for name in files.names(folder):
        if not name.endswith(".json"):
            continue
        path = folder / name
        data = files.read(path)
        try:
            found.append(fact(**json.loads(data)))
        except (ValueError, TypeError):
            with contextlib.suppress(OSError):  # no room: it stays where it is, and is set aside another time
                files.write(path.with_suffix(".damaged"), data)
                files.remove(path)
    return found
