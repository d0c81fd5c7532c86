"""Measurements of a job while it trains: the time of a step by part, and the worth of another batch."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["FITS", "PROFILED", "Profile", "is_profiled"]

PROFILED = "SUBLET_PROFILE_EVERY_S"  # a run that is only there to be measured: seconds between two reports
FITS = "SUBLET_SAMPLES_FIT"  # at a time on this kind of GPU, as an earlier run found out


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Means over the steps since the last one that was said; in a `Stepped` of rank 0, at most once a second.

    A step takes `step_s` from update to update. It is `pieces` micro-batches of about `samples`, each loaded and
    computed (forward and backward), then a wait for the gradients of others that backward did not hide, and the update.
    """

    step_s: float = 0.0
    pieces: int = 1
    samples: int = 1
    data_s: float = 0.0  # per micro-batch
    compute_s: float = 0.0  # per micro-batch
    wait_s: float = 0.0  # per step
    update_s: float = 0.0  # per step
    memory_bytes: int = 0  # most on the device at once, since the last; 0 = it cannot be told
    most_samples: int = 0  # at a time, as the script or its memory has it; 0 = all of its share
    noise_growth: float = 0.0  # of the logarithm of the gradient noise scale, per sample trained
    torch: str = ""  # its version
    device: str = ""  # what it computes on, as its maker calls it
    batch_initial: int = 0  # the learning rate is for this one; 0 = the batch is fixed
    batch_low: int = 0
    batch_high: int = 0


def is_profiled() -> bool:
    """Whether this process runs to be measured (`sublet profile`): it has no end, keeps nothing, and is thrown away."""
    return PROFILED in os.environ
