"""One run of a rehearsal: states after each step, printed lines, files, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sublet.wire.rehearsal import Cue

__all__ = ["Seen", "SeenStep", "opened_by_several", "steps_from"]

WEIGHTS = "p:"


@dataclass(frozen=True, slots=True)
class SeenStep:
    """After so many steps."""

    loss: float
    weights: Mapping[str, np.ndarray]  # of each parameter: its sum, its length, and some of its numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One run."""

    name: str
    workers: int
    seconds: float = 0.0
    failure: str = ""  # why it did not end well; "" = it did
    steps: Mapping[int, SeenStep] = field(default_factory=dict)
    lines: Sequence[str] = ()  # printed by rank 0
    all_lines: Sequence[str] = ()  # printed by any
    files: Mapping[str, bytes] = field(default_factory=dict)
    coarse: bool = False  # something was computed in half precision
    linked: Sequence[str] = ()  # what is the user's own in its folder
    shared: Sequence[str] = ()  # files that several workers opened to write

    @property
    def made(self) -> int:
        """Steps that it made; before the first one its state is that of step 0."""
        return max(self.steps, default=0)


def steps_from(cue: Cue) -> dict[int, SeenStep]:
    """The steps that its workers wrote."""
    found = {}
    for path in sorted(Path(cue.folder).glob("step-*.npz")):
        with np.load(path) as file:
            weights = {name[len(WEIGHTS) :]: file[name] for name in file.files if name.startswith(WEIGHTS)}
            found[int(path.stem.partition("-")[2])] = SeenStep(float(file["loss"]), weights)
    return found


def opened_by_several(cue: Cue) -> list[str]:
    """Files that more than one worker of the run opened to write."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(cue.folder).glob("opened-*")):
        counts.update(set(path.read_text(encoding="utf-8").splitlines()))
    return sorted(name for name, workers in counts.items() if workers > 1)
