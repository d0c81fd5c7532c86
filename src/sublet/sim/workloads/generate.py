"""Workloads drawn at random from named laws of arrival and of size. The same generator state gives the same workload.

>>> import numpy as np
>>> workload = generate(np.random.default_rng(1), n_jobs=200, rate_per_h=40.0, sizes=Lognormal(cv=2.0))
>>> len(workload), workload.jobs[0].id
(200, 'job-000')
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sublet.domain.job import Job, Speed
from sublet.domain.quantity import at_least, positive, whole
from sublet.domain.units import DAY_S, SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.sim.workloads.csvformat import DEFAULT_SPEEDUP
from sublet.sim.workloads.workload import Workload
from sublet.solve.arrays import Floats, Ints

MAX_JOBS = 10_000_000  # what fits the memory of a workstation


def generate(  # noqa: PLR0913 - one argument per law, each with a default
    rng: np.random.Generator,
    *,
    n_jobs: int,
    rate_per_h: float,
    arrivals: Arrivals | None = None,
    sizes: Sizes | None = None,
    mean_work_s: float = 3600.0,
    gpus: GpuMix | None = None,
    max_gpus: int = 0,
    speed: Speed | None = None,
    name: str = "generated",
) -> Workload:
    """Draw a workload: Poisson arrivals, exponential sizes and one GPU per job unless told otherwise.

    `mean_work_s` is in the unit of `speed`: seconds on one GPU for the speedups of `sublet.perf.speedup`. All jobs
    share one `speed`, may run on 1 GPU and on at most `max_gpus` (0 = what they ask for). Arrivals, sizes and requests
    have random streams of their own, so another law for one leaves the others as they are.
    """
    whole("n_jobs", n_jobs, 1)
    if n_jobs > MAX_JOBS:
        raise InvalidValue("n_jobs", n_jobs, f"at most {MAX_JOBS}")
    positive("rate_per_h", rate_per_h)
    positive("mean_work_s", mean_work_s)
    whole("max_gpus", max_gpus)
    arrivals = Poisson() if arrivals is None else arrivals
    sizes = Exponential() if sizes is None else sizes
    gpus = GpuMix() if gpus is None else gpus
    speed = DEFAULT_SPEEDUP if speed is None else speed

    arrival_rng, size_rng, gpu_rng = rng.spawn(3)
    submit_s_J = arrivals.times_s(arrival_rng, n_jobs, rate_per_h)  # J jobs
    work_J = sizes.draw(size_rng, n_jobs, mean_work_s)
    positive("work", float(work_J.max()))
    gpus_J = gpus.draw(gpu_rng, n_jobs)
    digits = math.ceil(math.log10(n_jobs)) if n_jobs > 1 else 1
    jobs = tuple(
        Job(
            id=f"job-{number:0{digits}d}",  # of equal length, so that ids sort in order of arrival
            submit_s=submit_s,
            work=work,
            speed=speed,
            gpus=asked,
            max_gpus=max(max_gpus, asked) if max_gpus else 0,
        )
        for number, (submit_s, work, asked) in enumerate(
            zip(submit_s_J.tolist(), work_J.tolist(), gpus_J.tolist(), strict=True)
        )
    )
    note = (
        f"{n_jobs} jobs drawn at random: {arrivals} at {rate_per_h:g} per hour, sizes {sizes} with mean "
        f"{mean_work_s:g} s of work, {gpus}, all of one {type(speed).__name__}"
    )
    return Workload(name=name, jobs=jobs, source="generated", licence="none needed", notes=(note,))


class Arrivals(Protocol):
    """A law of arrival."""

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """The first `n_jobs` arrivals after time 0, ascending, at `rate_per_h` jobs per hour in the long run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Independent arrivals: exponential gaps."""

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """See Arrivals."""
        return np.cumsum(rng.exponential(SECONDS_PER_H / rate_per_h, n_jobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty:
    """Batches, as from parameter sweeps: Poisson bursts of a geometric number of jobs that arrive at one instant."""

    mean_burst: float = 5.0

    def __post_init__(self) -> None:
        at_least("mean_burst", self.mean_burst, 1.0)

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """See Arrivals."""
        burst_mean_gap_s = self.mean_burst * SECONDS_PER_H / rate_per_h
        # A geometric burst ends after each job with the same chance, so whether a job opens a burst is a coin toss.
        opens = rng.random(n_jobs) < 1.0 / self.mean_burst
        opens[0] = True
        return np.cumsum(np.where(opens, rng.exponential(burst_mean_gap_s, n_jobs), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Daily:
    """A daily swing: Poisson arrivals whose rate is mean x (1 + swing x cos(2π (t - peak) / 24 h))."""

    swing: float = 0.8
    peak_h: float = 14.0  # mid-afternoon, on a clock whose midnight is time 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.swing <= 1.0:
            raise InvalidValue("swing", self.swing, "between 0 and 1")
        at_least("peak_h", self.peak_h, 0.0)

    def times_s(self, rng: np.random.Generator, n_jobs: int, rate_per_h: float) -> Floats:
        """See Arrivals. By thinning: draw at the highest rate, keep each with probability rate / highest rate."""
        highest_per_s = rate_per_h * (1.0 + self.swing) / SECONDS_PER_H
        kept: list[Floats] = []
        n_kept, now_s = 0, 0.0
        while n_kept < n_jobs:
            n_drawn = math.ceil(1.1 * (n_jobs - n_kept) * (1.0 + self.swing)) + 16  # usually enough in one pass
            times_s = now_s + np.cumsum(rng.exponential(1.0 / highest_per_s, n_drawn))
            phase = 2.0 * math.pi * (times_s - self.peak_h * SECONDS_PER_H) / DAY_S
            keep = rng.random(n_drawn) * (1.0 + self.swing) < 1.0 + self.swing * np.cos(phase)
            kept.append(times_s[keep])
            n_kept += int(keep.sum())
            now_s = float(times_s[-1])
        return np.concatenate(kept)[:n_jobs]


MAX_CV = 1e6  # wider, or narrower than its inverse, is beyond floating point and beyond any trace


class Sizes(Protocol):
    """A law of job size."""

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """`n_jobs` independent sizes above 0 with this mean, in its unit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic:
    """All the same."""

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:  # noqa: ARG002 - see Sizes
        """See Sizes."""
        return np.full(n_jobs, mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Memoryless; coefficient of variation 1."""

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """See Sizes."""
        return np.maximum(rng.exponential(mean, n_jobs), np.finfo(float).tiny)  # the law's one zero is no job


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """A long tail, as in most cluster traces; `cv` = standard deviation / mean."""

    cv: float = 2.0

    def __post_init__(self) -> None:
        _check_cv(self.cv)

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """See Sizes."""
        sigma = math.sqrt(math.log1p(self.cv**2))
        return rng.lognormal(math.log(mean) - sigma**2 / 2.0, sigma, n_jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pareto:
    """A power-law tail: P(size > x) falls as x ** -shape. Up to shape 2 the variance is infinite."""

    shape: float = 2.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shape) and self.shape > 1.0):
            raise InvalidValue("shape", self.shape, "a finite number above 1, so that there is a mean")

    @classmethod
    def from_cv(cls, cv: float) -> Pareto:
        """The one with this coefficient of variation: cv**2 = 1 / (shape (shape - 2))."""
        _check_cv(cv)
        return cls(shape=1.0 + math.sqrt(1.0 + cv**-2))

    def draw(self, rng: np.random.Generator, n_jobs: int, mean: float) -> Floats:
        """See Sizes."""
        smallest = mean * (self.shape - 1.0) / self.shape
        return smallest * (1.0 + rng.pareto(self.shape, n_jobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMix:
    """How many GPUs a job asks for: (GPUs, weight) pairs; weights need not sum to 1."""

    choices: tuple[tuple[int, float], ...] = ((1, 1.0),)

    def __post_init__(self) -> None:
        if not self.choices:
            raise InvalidValue("gpus", self.choices, "at least one (GPUs, weight) pair")
        for gpus, weight in self.choices:
            whole("gpus", gpus, 1)
            positive("weight of gpus", weight)

    def draw(self, rng: np.random.Generator, n_jobs: int) -> Ints:
        """`n_jobs` independent requests."""
        gpus_C = np.array([gpus for gpus, _ in self.choices], dtype=np.int64)  # C choices
        weight_C = np.array([weight for _, weight in self.choices])
        return rng.choice(gpus_C, size=n_jobs, p=weight_C / weight_C.sum())


def _check_cv(cv: float) -> None:
    if not 1.0 / MAX_CV <= cv <= MAX_CV:
        raise InvalidValue("cv", cv, f"between {1.0 / MAX_CV:g} and {MAX_CV:g}")
