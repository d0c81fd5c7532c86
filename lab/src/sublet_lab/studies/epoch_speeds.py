"""Speeds as the simulator of Pollux reckons them, to the second: to compare with the completion times it published.

The tables are those of `measured.py`; the clock is coarser. There an epoch ends on a whole second: whenever one is
completed, the time that it took since the last change is rounded. The rules are those of petuum/adaptdl, branch
osdi21-artifact.

>>> speed = pollux_speed("cifar10", 512)
>>> speed.work("T4", (4,), 0.0, 60.0) > speed.work("T4", (1,), 0.0, 60.0)
True
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice

import numpy as np

from sublet.domain.job import Job
from sublet.domain.plan import Pool
from sublet.domain.shape import Spread, packed
from sublet.errors import InvalidValue
from sublet.perf.goodput import Goodput, fixed_split
from sublet.perf.measured import goodput_model
from sublet.perf.steptime import iteration_s
from sublet.perf.tables import read_profile

GPU = "T4"  # what the tables were measured on
NOT_ELASTIC = ("ncf",)  # models that the simulator never gives more than one GPU when it may choose
MOST_GPUS = 64  # as far as the tables reach
MOST_ROUNDING_S = 0.5


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EpochSpeed:
    """One model at one global batch, in iterations at its initial batch per second.

    An epoch is behind the job as soon as its progress reaches the end of it, and then counts as having taken a whole
    number of seconds; what is left of the time, if anything, belongs to the next one.
    """

    model: str
    batch: int
    goodput: Goodput
    ends: tuple[float, ...]  # progress at the end of each epoch
    iterations: tuple[float, ...]  # at this batch, from the end of each epoch to the end of the last one; 1 for none
    _curves: dict[tuple[str, Spread], tuple[list[float], list[float]]] = field(default_factory=dict, init=False)
    _step_s: dict[int, list[float]] = field(default_factory=dict, init=False)  # GPUs per node -> by GPUs, from 1
    _left_s: dict[tuple[int, int], list[float]] = field(default_factory=dict, init=False)  # the same in each epoch

    def __repr__(self) -> str:
        return f"EpochSpeed(model={self.model!r}, batch={self.batch}, epochs={len(self.ends)})"

    @property
    def max_gpus(self) -> int:
        """How far the simulator lets the job grow: every GPU has a local batch that was measured."""
        most = 1 if self.model in NOT_ELASTIC else self.batch // self.goodput.limits[GPU].min_local
        return max(1, min(most, MOST_GPUS))

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """Iterations at the initial batch per second."""
        return self._curve(gpu, spread)[0][self._epoch(done)]

    def seconds(self, gpu: str, spread: Spread, done: float, goal: float) -> float:
        """Time to get from `done` to `goal`: whole seconds for every epoch but the one in which `goal` lies."""
        if goal <= done:
            return 0.0
        ends, first = self.ends, self._epoch(done)
        rates, starts_s = self._curve(gpu, spread)
        if not rates[first]:
            return math.inf
        last = min(bisect_left(ends, goal), len(ends) - 1)
        if first == last:
            return (goal - done) / rates[first]
        to_end_s = round((ends[first] - done) / rates[first])
        return to_end_s + starts_s[last] - starts_s[first + 1] + (goal - ends[last - 1]) / rates[last]

    def work(self, gpu: str, spread: Spread, done: float, seconds: float) -> float:
        """Progress after `seconds` from `done`."""
        ends, epoch = self.ends, self._epoch(done)
        rates, starts_s = self._curve(gpu, spread)
        last, rate = len(ends) - 1, rates[epoch]
        if seconds <= 0.0 or not rate:
            return done
        reached = done + rate * seconds
        if reached < ends[epoch] or epoch == last:
            return reached
        at_s = starts_s[epoch + 1] + seconds - round((ends[epoch] - done) / rate)
        # Rounding may let an epoch begin before the one ahead of it is over; never by more than half a second.
        epoch = max(epoch + 1, bisect_right(starts_s, at_s - MOST_ROUNDING_S) - 1)
        while True:
            reached = ends[epoch - 1] + rates[epoch] * max(0.0, at_s - starts_s[epoch])
            if reached < ends[epoch] or epoch == last:
                return reached
            epoch += 1

    def left_s(self, gpus_per_node: int, done: float) -> list[float]:
        """The forecast of the simulator's Optimus on 1, 2, ... GPUs, on as few nodes as possible.

        That is the iterations of a run at this batch times the step time. They are counted from the end of the epoch in
        which the job is, and are one at least.
        """
        epoch = self._epoch(done)
        left_s = self._left_s.get((gpus_per_node, epoch))
        if left_s is None:
            if gpus_per_node not in self._step_s:
                widths = range(1, self.max_gpus + 1)
                self._step_s[gpus_per_node] = [self._planned_step_s(packed(n, gpus_per_node)) for n in widths]
            left_s = [step_s * self.iterations[epoch] for step_s in self._step_s[gpus_per_node]]
            self._left_s[gpus_per_node, epoch] = left_s
        return left_s

    def _planned_step_s(self, spread: Spread) -> float:
        """Seconds per iteration; a single GPU is taken to accumulate, whatever the batch."""
        limits, gpus = self.goodput.limits[GPU], sum(spread)
        grid = fixed_split(replace(limits, initial=1) if gpus == 1 else limits, self.batch, gpus)
        if not len(grid.local):
            return math.inf
        return float(iteration_s(self.goodput.step[GPU], spread, grid.local, grid.accumulation)[0])

    def _epoch(self, done: float) -> int:
        epoch = bisect_right(self.ends, done)
        return epoch if epoch < len(self.ends) else epoch - 1

    def _curve(self, gpu: str, spread: Spread) -> tuple[list[float], list[float]]:
        """Rate in each epoch, and the second at which each would begin if the job ran like this from the start."""
        curve = self._curves.get((gpu, spread))
        if curve is None:
            rates, starts_s = self.goodput.rates(gpu, spread), [0.0]
            for epoch in range(len(rates) - 1):
                size = self.ends[epoch] - (self.ends[epoch - 1] if epoch else 0.0)
                starts_s.append(starts_s[-1] + (round(size / rates[epoch]) if rates[epoch] else math.inf))
            curve = self._curves[gpu, spread] = (rates, starts_s)
        return curve


@cache  # jobs of one model and batch share what was worked out for one
def pollux_speed(model: str, batch: int) -> EpochSpeed:
    """The speed of one of the measured models at a fixed global batch."""
    rows = read_profile("pollux-stat-efficiency").rows(model=model)
    batches = np.unique(rows.floats("batch_size"))
    run_BE = [rows.rows(batch_size=int(size)).floats("iteration") for size in batches]  # B batches, E epochs
    epochs = min(map(len, run_BE))
    count_E = [float(np.interp(batch, batches, [run_E[epoch] for run_E in run_BE])) for epoch in range(epochs)]
    left_E = tuple(count_E[-1] - count if count < count_E[-1] else 1.0 for count in count_E)
    goodput = goodput_model(model, batch=batch)
    return EpochSpeed(model, batch, goodput, goodput.efficiency.ends, left_E)


def iterations_left_s(job: Job, pool: Pool, done: float) -> Iterator[float]:
    """`EpochSpeed.left_s` of a job, from the fewest GPUs that it can run on; such jobs only."""
    if not isinstance(job.speed, EpochSpeed):
        raise InvalidValue("speed", job.speed, "an EpochSpeed")
    return islice(job.speed.left_s(pool.gpus_per_node, done), job.min_gpus - 1, None)
