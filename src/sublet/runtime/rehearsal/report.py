"""One run of a rehearsal as it was seen, and the report of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sublet.wire.rehearsal import Cue

WEIGHTS = "p:"
ALIKE, DIFFERS, CANNOT_RUN = "alike", "differs", "cannot run"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first of its kind in a run."""

    run: str  # seed, worker count or kill
    kind: str  # loss, weights, line, file or failure
    step: int | None = None  # after which it shows; None = of lines, files and failures that is not known
    name: str = ""  # the parameter, line or file
    evidence: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run, and how each kind of what was seen in it compares: equal, noise, differs, or `-` (not compared)."""

    name: str
    workers: int
    seconds: float
    steps: int
    against: str  # the run that it was compared with; "" = it is the first
    weights: str = "-"
    loss: str = "-"
    lines: str = "-"
    files: str = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`differences` count, the first one first; `noise` is what another seed changes: nothing within it counts."""

    command: tuple[str, ...]
    runs: tuple[RunView, ...] = ()
    differences: tuple[Difference, ...] = ()
    noise: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    why: str = ""  # it cannot run

    @property
    def verdict(self) -> str:
        """In one word."""
        return CANNOT_RUN if self.why else DIFFERS if self.differences else ALIKE

    @property
    def trains_alike(self) -> bool:
        """Whether what was trained is the same, whatever the script prints and writes."""
        kinds, compared = {each.kind for each in self.differences}, any(run.weights != "-" for run in self.runs)
        return not self.why and (not kinds or (compared and kinds <= {"line", "file"}))
