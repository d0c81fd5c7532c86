"""A step that does not fit into memory is made smaller: fewer samples at a time, accumulated to the same batch.

The failed step is dropped without a trace, and its samples are given again. The result is equal to the bit to a run
that took so few samples at a time from that step on.

How many samples fit on a GPU is estimated before more of them are tried. Beside the weights, the memory of a
micro-batch grows at most as fast as its samples. So the bytes per sample of the largest micro-batch so far are an upper
bound, which falls as larger ones are seen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from sublet.errors import OutOfMemory
from sublet.wire.messages import FITS

SMALLER = (
    "make a sample smaller (shorter, of lower resolution), train in bfloat16, recompute activations "
    "(torch.utils.checkpoint), or ask for GPUs with more memory"
)
SLIMMER = (
    "an optimizer that keeps less (SGD without momentum, Adafactor, 8-bit Adam), foreach=False, a smaller model, "
    "or GPUs with more memory"
)
FILLED = 0.9  # of what is free: memory has gaps, and libraries take some
DIGITS = 3  # binary ones that a number of samples keeps, so that it does not change with every byte


@dataclass(frozen=True, slots=True)
class Gauge:
    """The memory of a GPU, in bytes."""

    device: torch.device

    def take_peak(self) -> int:
        """The peak of allocated memory since the last call."""
        most = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return most

    def resident(self) -> int:
        """Memory between two steps: weights, optimizer state, kept gradients."""
        return torch.cuda.memory_allocated(self.device)

    def free(self) -> int:
        """Memory that could be had beside that: free, or reserved by torch."""
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + unused


def gauge_of(device: torch.device) -> Gauge | None:
    """None on a CPU."""
    return Gauge(device) if device.type == "cuda" else None


def memory_of(model: torch.nn.Module) -> dict[str, int]:
    """Bytes of weights and gradients, and of the device's memory; 0 on a CPU."""
    everything = list(model.parameters())
    device = everything[0].device
    weights = sum(each.numel() * each.element_size() * (2 if each.requires_grad else 1) for each in everything)
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return {"weight_bytes": weights, "device_bytes": memory}


class Footprint:
    """Told how many samples each micro-batch has."""

    def __init__(self, gauge: Gauge | None) -> None:
        self._gauge = gauge
        self._open = 0  # most samples at a time since the peak was last taken
        self._samples = self._bytes = 0  # of the largest micro-batch so far, beside what stays

    def gives(self, samples: int) -> None:
        """This many samples at a time are computed."""
        self._open = max(self._open, samples)

    def forget_open(self) -> None:
        """A micro-batch did not fit: its peak says nothing of what it needs."""
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
        """Samples at a time that fit: at least those that did; 0 = unknown."""
        if self._gauge is None or not self._samples:
            return 0
        fit = int(FILLED * self._gauge.free() * self._samples / self._bytes)
        return max(self._samples, _rounded_down(fit))


def _rounded_down(samples: int) -> int:
    """To three binary digits: 8, 10, 12, 14, 16, 20, ..."""
    low = max(0, samples.bit_length() - DIGITS)
    return samples >> low << low


@dataclass(frozen=True, slots=True)
class Cut:
    """`samples` at a time did not fit, and `micro_batch` are tried next."""

    samples: int
    micro_batch: int

    @property
    def advice(self) -> str:
        """The note on the error."""
        return (
            f"sublet: {self.samples} samples at a time did not fit\n  next: train.session(..., micro_batch="
            f"{self.micro_batch}), or s.step(lambda: ...) with a function that computes the loss, which survives it"
        )


def samples_that_fit() -> int:
    """At a time on this kind of GPU, as the controller knows it from an earlier run; 0 = unknown."""
    told = os.environ.get(FITS, "")
    return int(told) if told.isdecimal() else 0


class Memory:
    """How many samples this worker takes at a time; None = all of its share."""

    def __init__(self, micro_batch: int | None, gauge: Gauge | None = None, fits: int = 0) -> None:
        self.footprint = Footprint(gauge)
        self._fits = fits  # from an earlier run, until this one knows better; 0 = unknown
        self._most = micro_batch  # as the script has it, or as more did not fit
        self._expected = fits or None  # as more will not fit

    @property
    def micro_batch(self) -> int | None:
        """None = all of its share."""
        if self._expected is None or self._most is None:
            return self._most if self._expected is None else self._expected
        return min(self._most, self._expected)

    def expect(self, largest: int) -> int:
        """Between two steps: how many will fit, if that is below the `largest` there can be; the peak since the last.

        A batch that grows is then accumulated at once, and nothing is dropped to find out.
        """
        peak = self.footprint.look()
        if not largest:  # the batch is fixed: what fitted before does, and more is not needed
            return peak
        most = self.footprint.most() or self._fits
        self._expected = most if 0 < most < largest else None
        return peak

    def cut(self, samples: int) -> Cut:
        """These did not fit: half of them from now on; OutOfMemory if that is none."""
        self.footprint.forget_open()
        if samples <= 1:
            raise OutOfMemory(samples, hint=SMALLER)
        self.limit(samples // 2)
        return Cut(samples, samples // 2)

    def limit(self, micro_batch: int) -> None:
        """More than that did not fit at some worker; 0 = no limit."""
        if micro_batch:
            self._most = min(micro_batch, self._most or micro_batch)
