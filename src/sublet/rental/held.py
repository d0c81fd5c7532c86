"""How many GPUs are held at once when jobs never wait: the mean, and what is exceeded one time in a hundred.

If jobs arrive as a Poisson process and never queue, the number present of each kind is Poisson, whatever the
distribution of their times (the queue M/G/infinity), and the numbers are independent. So the GPUs held are a compound
Poisson sum, whose distribution is found exactly by inverting its characteristic function with a Fourier transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Held", "held_from"]

DEVIATIONS = 12.0  # how far beyond the mean the distribution is followed; what lies beyond is below rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """GPUs at a moment chosen at random."""

    mean: float
    p99: int  # the smallest number that is not exceeded 99 % of the time


def held_from(present: Sequence[tuple[float, int]]) -> Held:
    """From the mean number present and the GPUs of each, for every group of jobs.

    Cost: O(n log n) for n about the mean and twelve standard deviations.

    >>> held_from([(4.0, 1)]), held_from([(4.0, 8)]).p99
    (Held(mean=4.0, p99=9), 72)
    """
    mean = sum(jobs * gpus for jobs, gpus in present)
    widest = max((gpus for _, gpus in present), default=1)
    deviation = math.sqrt(sum(jobs * gpus**2 for jobs, gpus in present))
    points = 2 ** math.ceil(math.log2(mean + DEVIATIONS * (deviation + widest) + 2))
    jobs_G = np.zeros(points)  # G GPUs of one job
    for jobs, gpus in present:
        jobs_G[gpus] += jobs
    share_G = np.fft.irfft(np.exp(np.fft.rfft(jobs_G) - jobs_G.sum()), points)
    return Held(mean=mean, p99=int(np.searchsorted(np.cumsum(share_G), 0.99 - 1e-12)))
