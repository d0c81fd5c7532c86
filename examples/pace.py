"""Pretend that an accelerator does the work: sleep as long as it would need for a batch.

Several workers on two cores only get in each other's way. With a pace per sample, a worker with half of the samples
needs half of the time, as it would on a GPU of its own, and a laptop can show what a cluster does.
"""

from __future__ import annotations

import time


class Pace:
    """`keep(samples)` returns `ms_per_sample` milliseconds per sample after the last call, or at once if later."""

    def __init__(self, ms_per_sample: float) -> None:
        self._ms_per_sample = ms_per_sample
        self._since_s = time.perf_counter()

    def keep(self, samples: int) -> None:
        """Wait for the accelerator that is not there."""
        due_s = self._since_s + samples * self._ms_per_sample / 1000.0
        time.sleep(max(0.0, due_s - time.perf_counter()))
        self._since_s = time.perf_counter()
