"""The report of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALIKE", "CANNOT_RUN", "DIFFERS", "Difference", "Report", "RunView"]

ALIKE, DIFFERS, CANNOT_RUN = "alike", "differs", "cannot run"


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
