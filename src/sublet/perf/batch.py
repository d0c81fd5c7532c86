"""How a global batch is cut into local batches and accumulation steps.

A global batch is gpus x local x (accumulation + 1) samples: each GPU runs `accumulation` micro-batches of `local`
samples without exchanging gradients, then one more with. The rules are those of Pollux (OSDI 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats

__all__ = ["BatchGrid", "BatchLimits", "batch_grid", "fixed_split"]

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
