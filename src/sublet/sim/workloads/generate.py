"""Workloads drawn at random from named laws. The same generator state gives the same workload.

>>> import numpy as np
>>> workload = generate(np.random.default_rng(1), n_jobs=200, rate_per_h=40.0, sizes=Lognormal(cv=2.0))
>>> len(workload), workload.jobs[0].id
(200, 'job-000')
"""

from __future__ import annotations

import math

import numpy as np

from sublet.domain.job import Job, Speed
from sublet.domain.quantity import positive, whole
from sublet.errors import InvalidValue
from sublet.sim.workloads.arrivals import Arrivals, Bursty, Daily, Poisson
from sublet.sim.workloads.csvformat import DEFAULT_SPEEDUP
from sublet.sim.workloads.sizes import Deterministic, Exponential, GpuMix, Lognormal, Pareto, Sizes
from sublet.sim.workloads.workload import Workload

__all__ = [
    "Arrivals",
    "Bursty",
    "Daily",
    "Deterministic",
    "Exponential",
    "GpuMix",
    "Lognormal",
    "Pareto",
    "Poisson",
    "Sizes",
    "generate",
]

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
