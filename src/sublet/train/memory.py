"""A step that does not fit into memory is made smaller: fewer samples at a time, accumulated to the same batch.

What did not fit is dropped without a trace, and its samples are given again. The sum over a step is the same up to the
order of its additions: equal to the bit to a run that took so few samples at a time from that step on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sublet.errors import OutOfMemory

__all__ = ["Cut", "Memory", "peak_bytes"]

SMALLER = (
    "make a sample smaller (shorter, of lower resolution), train in bfloat16, recompute activations "
    "(torch.utils.checkpoint), or ask for GPUs with more memory"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """So many samples at a time did not fit, and so many are tried next."""

    samples: int
    micro_batch: int

    @property
    def advice(self) -> str:
        """To whoever could do something about it."""
        return (
            f"sublet: {self.samples} samples at a time did not fit\n  next: train.session(..., micro_batch="
            f"{self.micro_batch}), or s.step(lambda: ...) with a function that computes the loss, which survives it"
        )


class Memory:
    """How many samples this worker takes at a time; None = all of its share."""

    def __init__(self, micro_batch: int | None) -> None:
        self.micro_batch = micro_batch

    def cut(self, samples: int) -> Cut:
        """So many did not fit: half of them from now on; OutOfMemory if that is none."""
        if samples <= 1:
            raise OutOfMemory(samples, hint=SMALLER)
        self.limit(samples // 2)
        return Cut(samples, samples // 2)

    def limit(self, micro_batch: int) -> None:
        """More than that did not fit somewhere; 0 = nobody says so."""
        if micro_batch:
            self.micro_batch = min(micro_batch, self.micro_batch or micro_batch)


def peak_bytes(device: torch.device) -> int:
    """Most that tensors took on a GPU at once since the last time it was asked; 0 on a CPU, where nobody counts."""
    if device.type != "cuda":
        return 0
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most
