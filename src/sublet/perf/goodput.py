"""Goodput: samples per second times what a sample is worth at that batch size (Pollux, OSDI 2021).

With gradient noise scale n (in samples), a sample of a batch B is worth (n + B0) / (n + B) of a sample at the initial
batch B0. That is 1 at B0, less at larger batches, and less so the noisier the gradient. Noise grows as training goes
on, so each phase has its own best batch.

A global batch is gpus x local x (accumulation + 1) samples: each GPU runs `accumulation` micro-batches of `local`
samples without exchanging gradients, then one more with. The rules are those of Pollux (OSDI 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from sublet.domain.quantity import at_least, positive, whole
from sublet.domain.shape import Spread
from sublet.errors import InvalidValue
from sublet.perf.phased import Phased
from sublet.perf.steptime import StepTime, iteration_s
from sublet.solve.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """A global batch, how it is cut, and what comes of it."""

    global_batch: int
    local_batch: int
    accumulation: int  # micro-batches without gradient exchange before the one with
    throughput: float  # samples per second
    efficiency: float  # worth of a sample, 1 at the initial batch
    goodput: float  # throughput x efficiency


class Efficiency(Protocol):
    """The worth of a sample, by phase of training and batch size."""

    @property
    def ends(self) -> tuple[float, ...]:
        """Progress at which each phase ends, in units of work."""
        ...

    def worth(self, total_C: Floats) -> Floats:
        """Efficiency in each phase (rows) at each global batch (columns); 0 where the batch was never validated."""
        ...


def efficiency(noise: float | Floats, initial: int, batch: float | Floats) -> float | Floats:
    """(noise + initial) / (noise + batch): 1 at the initial batch, decreasing in `batch`, increasing in `noise`."""
    return (noise + initial) / (noise + batch)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NoiseCurve:
    """Gradient noise scale (samples) per phase; phase i ends at progress `ends[i]`."""

    initial: int
    ends: tuple[float, ...]
    noise: tuple[float, ...]

    def __post_init__(self) -> None:
        whole("initial", self.initial, 1)
        if len(self.noise) != len(self.ends):
            raise InvalidValue("noise", len(self.noise), f"one value for each of the {len(self.ends)} phases")
        for value in self.noise:
            at_least("noise", value, 0.0)

    def __repr__(self) -> str:
        return f"NoiseCurve(initial={self.initial}, phases={len(self.ends)})"

    def worth(self, total_C: Floats) -> Floats:
        """Efficiency in each phase (rows) at each global batch (columns)."""
        return np.asarray(efficiency(np.array(self.noise)[:, None], self.initial, total_C[None, :]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Goodput:
    """Best goodput over all batches that the limits allow, or at one fixed batch; `speed()` makes it a speed.

    The unit of work is `unit` useful samples: 1 counts samples at the initial batch, B0 counts its iterations.
    """

    step: Mapping[str, StepTime]  # by GPU kind
    limits: Mapping[str, BatchLimits]
    efficiency: Efficiency
    batch: int | None = None  # fixed global batch; None = the best one, chosen anew in every phase
    unit: float = 1.0

    def __post_init__(self) -> None:
        positive("unit", self.unit)
        if self.batch is not None:
            whole("batch", self.batch, 1)
        if not self.step:
            raise InvalidValue("step", dict(self.step), "a step-time model for at least one GPU kind")
        for kind in self.step:
            if kind not in self.limits:
                raise InvalidValue("limits", sorted(self.limits), f"batch limits for every kind, also for {kind}")

    def __repr__(self) -> str:
        return f"Goodput(kinds={sorted(self.step)}, phases={len(self.efficiency.ends)}, batch={self.batch})"

    def speed(self) -> Phased:
        """As a speed whose phases are those of the efficiency; rates are worked out when first asked for."""
        return Phased(ends=self.efficiency.ends, rates=self.rates)

    def rates(self, gpu: str, spread: Spread) -> list[float]:
        """Work per second in each phase."""
        grid = self._grid(gpu, spread)
        if not len(grid.total):
            return [0.0] * len(self.efficiency.ends)
        throughput_C = grid.total / iteration_s(self.step[gpu], spread, grid.local, grid.accumulation)
        goodput_EC = throughput_C * self.efficiency.worth(grid.total)  # E phases, C candidates
        rates: list[float] = (goodput_EC.max(axis=1) / self.unit).tolist()
        return rates

    def choice(self, gpu: str, spread: Spread, phase: int) -> BatchChoice | None:
        """The batch behind the rate of that phase; None where nothing can run."""
        grid = self._grid(gpu, spread)
        return (
            _best(self.step[gpu], spread, grid, self.efficiency.worth(grid.total)[phase]) if gpu in self.step else None
        )

    def _grid(self, gpu: str, spread: Spread) -> BatchGrid:
        gpus = sum(spread)
        if gpu not in self.step or gpus == 0:
            return BatchGrid(np.array([]), np.array([]), np.array([]))
        limits = self.limits[gpu]
        return batch_grid(limits, gpus) if self.batch is None else fixed_split(limits, self.batch, gpus)


def choose_batch(
    step: StepTime, spread: Spread, *, noise: float, limits: BatchLimits, batch: int | None = None
) -> BatchChoice | None:
    """The batch with the highest goodput at this noise (or what becomes of the fixed `batch`); None: cannot run."""
    at_least("noise", noise, 0.0)
    gpus = sum(spread)
    if gpus == 0:
        return None
    grid = batch_grid(limits, gpus) if batch is None else fixed_split(limits, batch, gpus)
    return _best(step, spread, grid, np.asarray(efficiency(noise, limits.initial, grid.total)))


def _best(step: StepTime, spread: Spread, grid: BatchGrid, worth_C: Floats) -> BatchChoice | None:
    if not len(grid.total):
        return None
    throughput_C = grid.total / iteration_s(step, spread, grid.local, grid.accumulation)
    best = int(np.argmax(throughput_C * worth_C))  # the smallest batch among equals
    if not throughput_C[best] * worth_C[best] > 0:
        return None
    return BatchChoice(
        global_batch=int(grid.total[best]),
        local_batch=int(grid.local[best]),
        accumulation=int(grid.accumulation[best]),
        throughput=float(throughput_C[best]),
        efficiency=float(worth_C[best]),
        goodput=float(throughput_C[best] * worth_C[best]),
    )


GRID_POINTS = 50  # global batch sizes tried per shape, as many as Pollux tries
SLACK = 1e-8  # so that a quotient that is whole up to rounding is not rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Batch sizes that a model may be trained with; `max_local` is what one GPU's memory holds."""

    initial: int  # the global batch at which efficiency is 1 by definition
    largest: int
    max_local: int
    min_local: int = 1

    def __post_init__(self) -> None:
        whole("initial", self.initial, 1)
        whole("min_local", self.min_local, 1)
        whole("largest", self.largest, 1)
        whole("max_local", self.max_local, 1)
        if self.largest < self.initial:
            raise InvalidValue("largest", self.largest, f"at least the initial batch {self.initial}")
        if self.max_local < self.min_local:
            raise InvalidValue("max_local", self.max_local, f"at least min_local {self.min_local}")


@dataclass(frozen=True, slots=True, eq=False)
class BatchGrid:
    """Candidates in increasing order of global batch; all three arrays have the same length, which may be 0."""

    total: Floats
    local: Floats
    accumulation: Floats


@lru_cache(maxsize=4096)  # spreads of as many GPUs share it
def batch_grid(limits: BatchLimits, gpus: int, *, points: int = GRID_POINTS) -> BatchGrid:
    """Global batches between the smallest and the largest allowed, evenly spaced in the logarithm, cut for `gpus`.

    All GPUs get equally many samples, so a batch is rounded up, or down where up is above the largest allowed; only
    then can it be a little below the initial one. Empty when the GPUs cannot each have `min_local` samples.
    """
    lowest = max(limits.initial, limits.min_local * gpus)
    wanted_C = np.geomspace(lowest, max(limits.largest, lowest), points) / gpus
    steps_C = np.ceil(wanted_C / limits.max_local - SLACK)
    if gpus == 1:
        # One GPU without accumulation has a single gradient, from which its noise cannot be told; so more than the
        # initial batch takes at least two micro-batches.
        steps_C = np.where(wanted_C > limits.initial + SLACK, np.maximum(steps_C, 2.0), steps_C)
    local_C = np.minimum(np.ceil(wanted_C / steps_C - SLACK), np.floor(limits.largest / (gpus * steps_C)))
    total_C = gpus * local_C * steps_C
    keep_C = (local_C >= limits.min_local) & (local_C <= limits.max_local)
    keep_C[1:] &= (local_C[1:] != local_C[:-1]) | (steps_C[1:] != steps_C[:-1])  # rounding makes neighbours equal
    return BatchGrid(total_C[keep_C], local_C[keep_C], steps_C[keep_C] - 1.0)


def fixed_split(limits: BatchLimits, batch: int, gpus: int) -> BatchGrid:
    """The one way to cut the global batch `batch` for `gpus`: as few accumulation steps as memory allows.

    Local batches are rounded up, so the batch that is run may be a little larger than the one asked for, but not
    larger than the largest allowed. Empty when there are more GPUs than samples.
    """
    local = math.ceil(batch / gpus - SLACK)
    steps = math.ceil(local / limits.max_local - SLACK)
    if gpus == 1 and batch > limits.initial:
        steps = max(steps, 2)
    local = min(math.ceil(local / steps - SLACK), limits.largest // (gpus * steps))
    one = np.array([float(local)]) if local > 0 else np.array([])
    return BatchGrid(one * gpus * steps, one, one * 0.0 + (steps - 1.0))
