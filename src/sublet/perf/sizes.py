"""How much work is left of a job that does not say: from finished jobs of its group, given what it has had so far.

Work is in hours of one worker. Of jobs that took longer than this one has had, it is one: so much more than that, in
the mean, is expected. One that has outlived them all is expected to need as much again as it has had.

>>> [Sizes((1.0, 2.0, 6.0)).expected_h(had) for had in (0.0, 1.5, 7.0)]
[3.0, 4.0, 14.0]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sublet.domain.plan import JobState
from sublet.domain.quantity import positive
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.learned import Learned

__all__ = ["UNKNOWN_H", "Sizes", "had_h"]

UNKNOWN_H = 1.0  # a job of which nothing is known is taken to need so long on one worker
_ONE = Learned(guess=1.0)  # what is assumed of a width before anything is measured; a script that tells nothing has it


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of finished jobs, the smallest first."""

    hours: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for each in self.hours:
            positive("hours", each)
        object.__setattr__(self, "hours", tuple(sorted(self.hours)))

    def expected_h(self, had: float) -> float:
        """The whole of a job that has had so much: a mean over all that took longer."""
        longer = self.hours[bisect_right(self.hours, had) :]
        if longer:
            return sum(longer) / len(longer)
        return 2.0 * had if self.hours else max(UNKNOWN_H, 2.0 * had)

    def quantile_h(self, share: float) -> float:
        """Precondition: any."""
        return float(np.quantile(self.hours, share))

    def describe(self, had: float) -> str:
        """Whence the size of a job is known that has had so much."""
        more = f"it has had {had:.2g} h of one worker, and {self.expected_h(had) - had:.2g} h more are expected"
        if not self.hours:
            return f"its size is not known, and no job of its group has finished: {more}"
        jobs = "1 finished job" if len(self.hours) == 1 else f"{len(self.hours)} finished jobs"
        spread = f"median {self.quantile_h(0.5):.2g} h, p90 {self.quantile_h(0.9):.2g} h"
        return f"its size is learned from {jobs} of this group: {spread}; {more}"


def had_h(state: JobState, now_s: float) -> float:
    """What a job has had so far in hours of one worker: a wider one has had more, by the speed that is assumed."""
    stints: Iterable[tuple[float, float, int]] = (*state.stints, (state.held_since_s, now_s, state.gpus))
    return sum(max(0.0, to_s - from_s) * _ONE.rate("", (gpus,), 0.0) for from_s, to_s, gpus in stints) / SECONDS_PER_H
