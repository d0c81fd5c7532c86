"""The log of a session as scalars of TensorBoard.

    with train.session(..., tracker=TensorBoard("runs")) as s:
        ...
        if s.updated:
            s.log({"loss": s.loss})

Each job has a folder below the directory, and each start of it writes a file of its own there, which TensorBoard shows
as one run. On nodes that share no disk the directory goes with its node: give one that all of them see.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Below `directory`, in a folder of the name of the run."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._writer: Any = None

    def begin(self, run: str) -> Mapping[str, int]:
        folder = self._directory / run
        last = _last_steps(folder)
        self._writer = SummaryWriter(str(folder))
        return last

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, *, finished: bool) -> None:
        del finished  # it knows of no such thing
        self._writer.close()


def _last_steps(folder: Path) -> dict[str, int]:
    """By name; the last record of a file may be torn, and is skipped."""
    last: dict[str, int] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                last[value.tag] = max(last.get(value.tag, -1), event.step)
    return last
