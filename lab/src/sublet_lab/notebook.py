"""A tracker that needs no library: a line of JSON for each word of a script, and a file for each run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

Noted = dict[str, dict[str, list[tuple[int, float]]]]


class Notebook:
    """See `sublet.train.sessions.tracking.Tracker`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, Path()

    def begin(self, run: str) -> Mapping[str, int]:
        """A file that others may have begun."""
        self._folder.mkdir(exist_ok=True)
        self._path = self._folder / f"{run}.jsonl"
        return {name: rows[-1][0] for name, rows in noted(self._folder).get(run, {}).items()}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line."""
        with self._path.open("a", encoding="ascii") as file:
            file.write(json.dumps([step, dict(values)]) + "\n")

    def end(self, *, finished: bool) -> None:
        """Nothing is open."""


def noted(folder: Path) -> Noted:
    """{run: {name: [(step, value)]}} in the order in which it was written."""
    found: Noted = {}
    for path in sorted(folder.glob("*.jsonl")):
        rows = found[path.stem] = defaultdict(list)
        for step, values in map(json.loads, path.read_text(encoding="ascii").splitlines()):
            for name, value in values.items():
                rows[name].append((step, value))
    return found
