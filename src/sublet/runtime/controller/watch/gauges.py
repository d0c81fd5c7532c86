"""Counters and histograms of the controller's own doing, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from sublet.machine.wall import WALL, Wall

__all__ = ["CallOutcome", "Gauges", "Histogram", "ResizeCause"]


class CallOutcome(StrEnum):
    """How a call of the provider went: a label of a metric."""

    OK = "ok"
    REFUSED = "refused"
    ERROR = "error"
    THROTTLED = "throttled"  # too many calls: asked again, in its turn


class ResizeCause(StrEnum):
    """Why a job changes its worker count: a label of a metric."""

    LOSS = "loss"
    NOTICE = "notice"
    GROW = "grow"
    SHRINK = "shrink"


@dataclass(slots=True)
class Histogram:
    """Observations in buckets: `counts[i]` were at most `bounds[i]`, the last is above all."""

    bounds: tuple[float, ...] = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Gauges:
    """Times are wall time."""

    notice_to_commit_s: Histogram = field(default_factory=Histogram)
    recovery_s: Histogram = field(default_factory=Histogram)
    decision_s: Histogram = field(default_factory=Histogram)
    resizes: Counter[str] = field(default_factory=Counter)
    calls: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    orphans: int = 0
    damaged: int = 0  # checkpoints that were passed over
    short_of_memory: int = 0  # times that a step did not fit
    alarms: Counter[str] = field(default_factory=Counter)  # by kind
    reconcile_s: float | None = None
    reconciled_at: float | None = None
    wall: Wall = WALL
    _reconciled: float | None = None  # monotonic

    def count_resize(self, why: ResizeCause) -> None:
        """A job changes its worker count."""
        self.resizes[why] += 1

    def count_call(self, call: str, outcome: CallOutcome) -> None:
        """A provider was asked for something."""
        self.calls[call][outcome] += 1

    def reconciled(self, seconds: float) -> None:
        """The held nodes were compared with those that exist."""
        self.reconcile_s, self.reconciled_at, self._reconciled = seconds, self.wall.unix(), self.wall.monotonic()

    @property
    def reconciled_ago_s(self) -> float | None:
        """Since then; the wall clock, which may be set, is for people only."""
        return None if self._reconciled is None else self.wall.monotonic() - self._reconciled
