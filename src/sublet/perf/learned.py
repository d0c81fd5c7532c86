"""The speed of a job that runs: what was measured at some worker counts, and a curve through it for the others.

The curve is 1/rate = serial + parallel/worker count, the law of Amdahl, fitted to the measured times per sample. One
worker count alone cannot tell the two parts apart: then the serial one is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.domain.quantity import positive, whole
from sublet.domain.shape import Spread
from sublet.errors import InvalidValue
from sublet.perf.speedup import ConstantRate

MEASURED_DOUBT = 0.1  # of a rate that was measured: it is smoothed over steps, and told when it has moved by a quarter
GUESSED_DOUBT = 0.2  # of one read off the curve: a serial part of 0 to 20 % instead of 5 % moves two to four workers so
GUESSED_SERIAL = 0.05  # of the time on one worker; what this project assumes of traces without profiles, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`workers` on GPUs of kind `gpu` did `rate` work a second."""

    gpu: str
    workers: int
    rate: float

    def __post_init__(self) -> None:
        whole("workers", self.workers, 1)
        positive("rate", self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned(ConstantRate):
    """Equal measurements make equal speeds, so what a policy worked out for one holds for the other."""

    measured: tuple[Measured, ...] = ()
    guess: float  # rate of one worker, until something is measured
    sizes: tuple[int, ...] = ()  # worker counts that the owner allows; () = all

    def __post_init__(self) -> None:
        positive("guess", self.guess)
        widths = [(m.gpu, m.workers) for m in self.measured]
        if len(set(widths)) < len(widths):
            raise InvalidValue("measured", widths, "one rate per kind and worker count")

    def rate(self, gpu: str, spread: Spread, done: float) -> float:  # noqa: ARG002 - the same in every phase
        """Work per second: measured at this worker count, else read off the curve."""
        workers = sum(spread)
        if workers < 1 or (self.sizes and workers not in self.sizes):
            return 0.0
        own = {m.workers: m.rate for m in self.measured if m.gpu == gpu}
        own = own or _mean_by_width(self.measured)  # a kind without a measurement is taken for an average one
        if workers in own:
            return own[workers]
        serial, parallel = _parts(own) if own else (GUESSED_SERIAL / self.guess, (1 - GUESSED_SERIAL) / self.guess)
        return 1.0 / (serial + parallel / workers)

    def doubt(self, gpu: str, spread: Spread) -> float:
        """Little where it was measured, more where it was not."""
        workers = sum(spread)
        known = any(m.gpu == gpu and m.workers == workers for m in self.measured)
        return MEASURED_DOUBT if known else GUESSED_DOUBT


def _mean_by_width(measured: tuple[Measured, ...]) -> dict[int, float]:
    widths = {m.workers for m in measured}
    return {w: float(np.mean([m.rate for m in measured if m.workers == w])) for w in widths}


def _parts(rate_by_width: dict[int, float]) -> tuple[float, float]:
    """Serial and parallel seconds per unit of work, neither below 0."""
    widths = np.array(list(rate_by_width), dtype=float)
    times = 1.0 / np.array(list(rate_by_width.values()))
    if len(widths) > 1:
        parallel, serial = np.polyfit(1.0 / widths, times, 1)
        if serial >= 0 and parallel >= 0:
            return float(serial), float(parallel)
        if parallel < 0:  # wider is slower: nothing is gained by worker count
            return float(times.mean()), 0.0
        return 0.0, float((times * widths).mean())
    width, time = float(widths[0]), float(times[0])
    one_s = time / (GUESSED_SERIAL + (1 - GUESSED_SERIAL) / width)
    return GUESSED_SERIAL * one_s, (1 - GUESSED_SERIAL) * one_s
