"""The log of a session as the history of one run of Weights & Biases.

    with train.session(..., tracker=Wandb(project="mine")) as s:

Every start opens the run of the same id again; offline each has a part of its own, which `wandb sync` joins by the id.
W&B buffers rows in memory, and they are lost if the process is killed. So every row is first written to a file in
`directory` (or `$WANDB_DIR`, or here: give one that all nodes see). A start that finds rows of one that did not end
puts its part aside and logs them again, before its own. Other settings are those of `wandb.init`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from sublet.machine.files import FILES

TORN = "torn-"  # before the name of a part that was not ended


class Wandb:
    """A run of this id is begun, or gone on with."""

    def __init__(self, project: str = "sublet", directory: Path | str | None = None, **settings: Any) -> None:
        self._project, self._settings = project, settings
        self._directory = Path(directory or os.environ.get("WANDB_DIR") or ".")
        self._run: Any = None
        self._notes = Path()

    def begin(self, run: str) -> Mapping[str, int]:
        FILES.make_folder(self._directory)
        self._notes = self._directory / f"sublet-{run}.jsonl"
        last, rows, parts = _read(self._notes)
        offline = self._settings.get("mode", os.environ.get("WANDB_MODE")) == "offline"
        for part in parts if offline else ():
            if part.exists():
                FILES.rename(part, part.with_name(TORN + part.name))
        more = self._settings if offline else {"resume": "allow", **self._settings}
        self._run = wandb.init(project=self._project, id=run, name=run, dir=str(self._directory), **more)
        self._note(part=str(Path(self._run.dir).parent))
        for row in rows:
            self._run.log(row["values"], step=row["step"])
        return last

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._note(step=step, values=dict(values))
        self._run.log(dict(values), step=step)

    def end(self, *, finished: bool) -> None:
        del finished  # a part of the run is whole either way
        self._run.finish()
        self._note(ended=True)

    def _note(self, **facts: Any) -> None:
        FILES.append(self._notes, json.dumps(facts).encode() + b"\n")


def _read(notes: Path) -> tuple[dict[str, int], list[dict[str, Any]], list[Path]]:
    """The last step of each name; rows, and parts of the run, of starts that did not end."""
    last: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    parts: list[Path] = []
    for line in FILES.read(notes).splitlines(keepends=True) if notes.exists() else ():
        if not line.endswith(b"\n"):
            FILES.append(notes, b"\n")  # torn: what was to be noted was not logged
            continue
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        if "values" in facts:
            rows.append(facts)
            last |= dict.fromkeys(facts["values"], facts["step"])
        elif "part" in facts:
            parts.append(Path(facts["part"]))
        else:
            rows, parts = [], []
    return last, rows, parts
