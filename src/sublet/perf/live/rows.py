"""Measurements of a job's steps in one form: so many GPUs, so many samples at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from sublet.domain.quantity import at_least, named, positive, whole
from sublet.errors import InvalidValue

EARLIER_ERROR = 0.1  # of what an earlier run measured: other data, other neighbours, a newer library
PREDICTED_ERROR = 0.5  # of what was reckoned from another kind of GPU; as the adviser's, see `sublet study deepvm`


class Source(StrEnum):
    """Whence a number is, the surest first."""

    MEASURED = "measured"
    EARLIER = "from an earlier run"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step of `pieces` micro-batches of `samples` on each of `gpus` GPUs took `step_s` from update to update."""

    gpu: str
    gpus: int
    nodes: int = 1
    samples: int
    pieces: int = 1
    step_s: float
    piece_s: float  # of which a micro-batch takes so long, loading it included
    wait_s: float = 0.0  # and the exchange of gradients so long, as far as backward does not hide it
    error: float = 0.05  # of these times, as a part of them
    source: Source = Source.MEASURED

    def __post_init__(self) -> None:
        named("gpu", self.gpu)
        whole("nodes", self.nodes, 1)
        whole("gpus", self.gpus, self.nodes)
        whole("samples", self.samples, 1)
        whole("pieces", self.pieces, 1)
        positive("step_s", self.step_s)
        positive("piece_s", self.piece_s)
        at_least("wait_s", self.wait_s, 0.0)
        positive("error", self.error)
        if self.pieces * self.piece_s + self.wait_s > self.step_s * (1.0 + 1e-9):
            raise InvalidValue("step_s", self.step_s, "at least what its micro-batches and the wait take together")

    @property
    def other_s(self) -> float:
        """The rest of a step: the update, and what the script does between steps."""
        return max(0.0, self.step_s - self.pieces * self.piece_s - self.wait_s)

    @property
    def form(self) -> tuple[str, int, int, int, int]:
        """The key that two rows share that measured the same."""
        return (self.gpu, self.gpus, self.nodes, self.samples, self.pieces)


def earlier(row: StepRow) -> StepRow:
    """A row of a finished run, for one that begins."""
    return replace(row, error=max(row.error, EARLIER_ERROR), source=Source.EARLIER)


def predicted(row: StepRow, gpu: str, ratio: float) -> StepRow:
    """The same on a kind of GPU on which it never ran, that computes `ratio` times as long."""
    positive("ratio", ratio)
    return replace(
        row,
        gpu=gpu,
        step_s=row.step_s + (ratio - 1.0) * row.pieces * row.piece_s,
        piece_s=row.piece_s * ratio,
        error=PREDICTED_ERROR,
        source=Source.PREDICTED,
    )
