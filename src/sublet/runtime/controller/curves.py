"""The curve of a loss over steps, in bounded memory: the longer it is, the farther apart its points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Curve"]

MOST = 512  # points; half of them go when there are more


@dataclass(slots=True)
class Curve:
    """Of one job, for as long as its controller lives. Steps that are made again stand as they were made last."""

    points: list[tuple[int, float]] = field(default_factory=list)  # (step, loss), steps rising
    apart: int = 1  # steps, at least, between two points

    def add(self, step: int, loss: float | None) -> None:
        """A report."""
        if loss is None or not math.isfinite(loss):
            return
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        if self.points and step - self.points[-1][0] < self.apart:
            return
        self.points.append((step, loss))
        if len(self.points) > MOST:
            self.points = self.points[::2]
            self.apart = max(2 * self.apart, (self.points[-1][0] - self.points[0][0]) // MOST)
