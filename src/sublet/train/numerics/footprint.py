"""How many samples at a time will fit on a GPU, from what those before took: known before more of them are tried.

What a micro-batch takes beside weights and the like grows at most as fast as its samples: something of it is there for
any number. So the bytes of one sample, as the largest micro-batch so far had them, are rather too many than too few,
and fall as larger ones are seen. What then does not fit after all is halved (`memory`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

__all__ = ["CudaGauge", "Footprint", "Gauge", "gauge_of"]

FILLED = 0.9  # of what is free: memory has gaps, and the libraries take some that nobody counts
DIGITS = 3  # binary ones that a number of samples keeps, so that it does not change with every byte


class Gauge(Protocol):
    """The memory of one device, in bytes."""

    def take_peak(self) -> int:
        """Most that tensors took at once since the last time it was asked."""
        ...

    def resident(self) -> int:
        """What they take now, between two steps."""
        ...

    def free(self) -> int:
        """What could be had beside that."""
        ...


@dataclass(frozen=True, slots=True)
class CudaGauge:
    """Of a GPU."""

    device: torch.device

    def take_peak(self) -> int:
        """As torch counts it."""
        most = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return most

    def resident(self) -> int:
        """Weights, the state of the optimizer, gradients that are kept."""
        return torch.cuda.memory_allocated(self.device)

    def free(self) -> int:
        """What nobody has, and what torch holds for later."""
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + unused


def gauge_of(device: torch.device) -> Gauge | None:
    """None on a CPU, where nobody counts."""
    return CudaGauge(device) if device.type == "cuda" else None


class Footprint:
    """Told how many samples each micro-batch has."""

    def __init__(self, gauge: Gauge | None) -> None:
        self._gauge = gauge
        self._open = 0  # most samples at a time since the peak was last taken
        self._samples = self._bytes = 0  # of the largest micro-batch so far, beside what stays

    def gives(self, samples: int) -> None:
        """So many at a time are computed."""
        self._open = max(self._open, samples)

    def forget_open(self) -> None:
        """What was under way did not fit: its peak says nothing of how much it would have taken."""
        self._open = 0
        if self._gauge is not None:
            self._gauge.take_peak()

    def look(self) -> int:
        """Between two steps: learn from those since the last look; their peak, 0 where it cannot be told."""
        if self._gauge is None:
            return 0
        peak, samples = self._gauge.take_peak(), self._open
        self._open, beside = 0, peak - self._gauge.resident()
        if samples >= max(1, self._samples) and beside > 0:
            self._bytes = max(beside, self._bytes) if samples == self._samples else beside
            self._samples = samples
        return peak

    def most(self) -> int:
        """Samples at a time that fit: at least those that did; 0 = nothing is known."""
        if self._gauge is None or not self._samples:
            return 0
        fit = int(FILLED * self._gauge.free() * self._samples / self._bytes)
        return max(self._samples, _rounded_down(fit))


def _rounded_down(samples: int) -> int:
    """To three binary digits: 8, 10, 12, 14, 16, 20, ..."""
    low = max(0, samples.bit_length() - DIGITS)
    return samples >> low << low
