"""Jobs of a workload that scale as a script was measured to (`sublet profile`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sublet.domain.job import Job
from sublet.domain.quantity import counted
from sublet.domain.shape import packed
from sublet.errors import BadInput
from sublet.perf.live.speed import LiveSpeed
from sublet.perf.live.stored import StoredProfile, speed_from
from sublet.sim.workloads.jobrows import GPUS_PER_NODE
from sublet.sim.workloads.workload import Workload


def with_profile(workload: Workload, profiles: Sequence[StoredProfile]) -> Workload:
    """The jobs whose model is called so take speed and batches from the profile; all do where none is.

    Each is as long as before on the GPUs that it asked for, of the first kind that was measured: so many samples.
    """
    speed, name = speed_from(profiles), profiles[0].name
    chosen = {job.id for job in workload.jobs if job.model == name} or {job.id for job in workload.jobs}
    jobs = tuple(_measured(job, speed, workload.name) if job.id in chosen else job for job in workload.jobs)
    batches = f"{speed.batches[0]} to {speed.batches[-1]}" if len(speed.batches) > 1 else f"{speed.initial}"
    note = (
        f"the speed of {counted(len(chosen), 'job')} is as {name} was measured on {' and '.join(speed.kinds)}, with "
        f"batches of {batches}; each is as long as before on the GPUs that it asked for"
    )
    if speed.noise is None:
        note += "; no gradient noise was measured, so batches stay as they are"
    if of_cpus := sorted(each.gpu for each in profiles if each.is_of_cpus):
        kinds = " and ".join(of_cpus)
        note += f"; it ran on CPUs, for which {kinds} is but a name: how it scales on real GPUs is not known"
    return replace(workload, jobs=jobs, notes=(*workload.notes, note))


def _measured(job: Job, speed: LiveSpeed, source: str) -> Job:
    gpu, spread = speed.kinds[0], packed(job.gpus, GPUS_PER_NODE)
    seconds = min(job.speed.seconds(kind, spread, 0.0, job.work) for kind in (gpu, ""))
    work = seconds * speed.rate(gpu, spread, 0.0)
    if not 0.0 < work < math.inf:
        why = f"job {job.id} has no length on {job.gpus} x {gpu}, before or by the profile"
        raise BadInput(
            source, why, hint="give jobs a duration_s, and worker counts up to the least batch of the profile"
        )
    return replace(job, speed=speed, work=work)
