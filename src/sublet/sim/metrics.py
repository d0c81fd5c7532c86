"""The figures of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvariantBroken
from sublet.kernel.kernel import Kernel
from sublet.sim.record import Recorder
from sublet.solve.arrays import Floats

LITTLE_TOLERANCE = 1e-6  # relative; both sides are sums of the same floats in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Completion times are from submission to end, over the jobs that ended; NaN where none did."""

    jobs: int
    finished: int
    mean_s: float
    p50_s: float
    p99_s: float
    max_s: float
    mean_wait_s: float
    makespan_s: float  # first submission to last end
    gpu_hours: float  # paid for
    used_gpu_hours: float  # of these, held by jobs
    paused_gpu_hours: float  # of these, starting, resizing or broken
    usd: float
    utilisation: float  # training / paid for
    rescales: int  # resizes and restarts after the first start
    losses: int  # nodes that the cloud took
    plans: int
    mean_jobs: float  # time average of jobs present
    seconds: float  # wall clock
    jobs_per_s: float  # of CPU time: how busy the machine was does not matter


def metrics_from_run(record: Recorder, kernel: Kernel, seconds: float, cpu_s: float) -> Metrics:
    """Sum up; Little's law is verified on the way, since both of its sides are measured apart."""
    rows = list(record.jobs.values())
    done = [row for row in rows if row.finish_s is not None]
    times = np.array([row.completion_s for row in done])
    waits = np.array([row.start_s - row.submit_s for row in rows if row.start_s is not None])
    first_s = min(row.submit_s for row in rows)
    last_s = max((row.finish_s for row in done if row.finish_s is not None), default=kernel.now_s)
    if len(done) == len(rows):
        _little(float(times.sum()), record.job_seconds)
    used = sum(row.gpu_s for row in rows)
    paused = sum(row.paused_gpu_s for row in rows)
    span_s = last_s - first_s
    watched_s = (last_s if len(done) == len(rows) else kernel.now_s) - first_s
    return Metrics(
        jobs=len(rows),
        finished=len(done),
        mean_s=_stat(np.mean, times),
        p50_s=_stat(np.median, times),
        p99_s=float(np.percentile(times, 99)) if len(times) else float("nan"),
        max_s=_stat(np.max, times),
        mean_wait_s=_stat(np.mean, waits),
        makespan_s=span_s,
        gpu_hours=record.held_gpu_s / SECONDS_PER_H,
        used_gpu_hours=used / SECONDS_PER_H,
        paused_gpu_hours=paused / SECONDS_PER_H,
        usd=kernel.ledger.spent(kernel.now_s).usd,
        utilisation=(used - paused) / record.held_gpu_s if record.held_gpu_s else float("nan"),
        rescales=sum(row.resizes + max(0, row.starts - 1) for row in rows),
        losses=record.losses,
        plans=record.plans,
        mean_jobs=record.job_seconds / watched_s if watched_s else float("nan"),
        seconds=seconds,
        jobs_per_s=len(done) / cpu_s if cpu_s else float("nan"),
    )


def _stat(function: Callable[[Floats], np.floating], values: Floats) -> float:
    return float(function(values)) if len(values) else float("nan")


def _little(sum_of_times_s: float, job_seconds: float) -> None:
    """The integral of jobs present is the sum of their times: L = lambda W, sample path by sample path."""
    if abs(sum_of_times_s - job_seconds) > LITTLE_TOLERANCE * max(1.0, sum_of_times_s):
        raise InvariantBroken("Little's law", f"sum of times {sum_of_times_s} s, integral of jobs {job_seconds} s")
