"""Does a model fit: what weights, gradients, optimizer and activations take of a GPU's memory.

>>> gpt2 = ModelMemory(params=124.5e6, activation_bytes_per_sample=1.4 * GIB)
>>> gpt2.max_local_batch(16.0)
9
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from sublet.domain.quantity import at_least, positive, whole
from sublet.domain.units import GIB
from sublet.errors import InvalidValue

RESERVED_GIB = 1.0  # CUDA context, communication buffers and fragmentation; a round guess, not a measurement

STATE_BYTES_PER_PARAM: Mapping[str, float] = MappingProxyType(
    {
        "adam-fp32": 16.0,  # weight 4, gradient 4, two moments 8; autocast leaves these in fp32
        "adam-mixed": 16.0,  # weight 2, gradient 2, and 12 in fp32: weight and two moments (ZeRO, SC 2020)
        "sgd-momentum-fp32": 12.0,
        "sgd-fp32": 8.0,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Memory of one replica: so many bytes per parameter, per sample, and whatever else."""

    params: float
    activation_bytes_per_sample: float
    state_bytes_per_param: float = STATE_BYTES_PER_PARAM["adam-fp32"]
    other_bytes: float = RESERVED_GIB * GIB

    def __post_init__(self) -> None:
        positive("params", self.params)
        at_least("activation_bytes_per_sample", self.activation_bytes_per_sample, 0.0)
        positive("state_bytes_per_param", self.state_bytes_per_param)
        at_least("other_bytes", self.other_bytes, 0.0)

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer state."""
        return self.params * self.state_bytes_per_param

    def needed_bytes(self, local_batch: int, *, shards: int = 1) -> float:
        """Memory per GPU when the state is cut into `shards` equal parts (1 = every GPU has all of it)."""
        whole("local_batch", local_batch)
        whole("shards", shards, 1)
        return self.state_bytes / shards + self.other_bytes + local_batch * self.activation_bytes_per_sample

    def fits(self, mem_gib: float, *, local_batch: int = 1, shards: int = 1) -> bool:
        """Whether a GPU with this much memory can train with that local batch."""
        positive("mem_gib", mem_gib)
        return self.needed_bytes(local_batch, shards=shards) <= mem_gib * GIB

    def max_local_batch(self, mem_gib: float, *, shards: int = 1, most: int = 2**31 - 1) -> int:
        """The largest local batch that fits, at most `most`; 0 = not even one sample does."""
        positive("mem_gib", mem_gib)
        free_bytes = mem_gib * GIB - self.needed_bytes(0, shards=shards)
        if free_bytes < 0:
            return 0
        if free_bytes >= most * self.activation_bytes_per_sample:
            return most
        batch = math.floor(free_bytes / self.activation_bytes_per_sample)
        # The quotient may be rounded across a whole number, so the answer is held to what `fits` says.
        while batch > 0 and not self.fits(mem_gib, local_batch=batch, shards=shards):
            batch -= 1
        return batch


def memory_from_peaks(
    params: float,
    local_batches: Sequence[int],
    peak_gib: Sequence[float],
    *,
    state_bytes_per_param: float = STATE_BYTES_PER_PARAM["adam-fp32"],
) -> ModelMemory:
    """The model whose line goes best through measured peaks of memory; needs two different local batches.

    The slope is taken as activations per sample; what the intercept has beyond the state becomes `other_bytes`.
    """
    if len(set(local_batches)) < 2 or len(local_batches) != len(peak_gib):  # noqa: PLR2004 - a line needs two points
        raise InvalidValue("local_batches", list(local_batches), "at least two different sizes, one peak for each")
    slope, intercept = np.polyfit(np.asarray(local_batches, float), np.asarray(peak_gib, float) * GIB, 1)
    return ModelMemory(
        params=params,
        activation_bytes_per_sample=max(float(slope), 0.0),
        state_bytes_per_param=state_bytes_per_param,
        other_bytes=max(float(intercept) - params * state_bytes_per_param, 0.0),
    )
