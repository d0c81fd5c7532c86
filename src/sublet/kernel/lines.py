"""Promises in each pool, and the queue for them: one queue per pool, first in first out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sublet.domain.plan import JobState
from sublet.domain.shape import Shape

__all__ = ["Lines"]


class Lines:
    """All by pool; the mappings stay the same objects when other pools are on offer."""

    def __init__(self, pools: Iterable[str]) -> None:
        self.promised: dict[str, int] = dict.fromkeys(pools, 0)  # GPUs
        self.steady: dict[str, int] = dict.fromkeys(self.promised, 0)  # of these, on demand
        self.of: dict[str, dict[str, None]] = {pool: {} for pool in self.promised}  # jobs that need GPUs

    def promise(self, shape: Shape) -> None:
        """A job shall have it."""
        self.promised[shape.pool] += shape.gpus
        self.steady[shape.pool] += shape.steady

    def take_back(self, state: JobState) -> None:
        """Take its promise back."""
        if (shape := state.shape) is not None:
            self.promised[shape.pool] -= shape.gpus
            self.steady[shape.pool] -= shape.steady
            self.of[shape.pool].pop(state.job.id, None)

    def stand(self, state: JobState) -> None:
        """It needs GPUs to keep its promise."""
        if state.shape is not None:
            self.of[state.shape.pool][state.job.id] = None

    def keep_to(self, pools: Iterable[str]) -> None:
        """Other pools are on offer; there are no promises in those that are not."""
        names = list(pools)
        for counts in (self.promised, self.steady):
            kept = {pool: counts.get(pool, 0) for pool in names}
            counts.clear()
            counts.update(kept)
        lines = {pool: self.of.get(pool, {}) for pool in names}
        self.of.clear()
        self.of.update(lines)

    def restore(self, lines: Mapping[str, Iterable[str]]) -> None:
        """Go on from there."""
        self.of |= {pool: dict.fromkeys(line) for pool, line in lines.items()}
