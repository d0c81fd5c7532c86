"""Jobs of Pollux's workloads that no constant of ours was chosen on.

Its workloads of one number are nested: the one at load 1.5 has every job of the one at load 1, and the one at load 2
every job of both. Constants were chosen, and goals set, at load 1. Load 2 has as many jobs again, drawn by the same
authors from the same hours: one more trace of load 1, which shares no job with those of the tuning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sublet.domain.job import Job
from sublet.sim.workloads import load_workload
from sublet.sim.workloads.workload import Workload
from sublet_lab.studies import pollux_oracle
from sublet_lab.studies.peers import Setting, cluster_of_t4

NUMBERS = ("1", "2", "3", "4", "5", "6")


def besides(jobs: Sequence[Job], seen: Sequence[Job]) -> list[Job]:
    """Those of `jobs` that are not among the seen, each of which accounts for one: same second, model and request."""
    left, found = Counter((job.submit_s, job.model, job.gpus) for job in seen), []
    for job in jobs:
        what = (job.submit_s, job.model, job.gpus)
        if left[what]:
            left[what] -= 1
        else:
            found.append(job)
    return found


def unseen_cluster(*numbers: str) -> Setting:
    """64 T4s and the jobs that load 2 has besides load 1: of one number at load 1, of two together at load 2."""
    jobs = [
        replace(job, id=f"{number}-{job.id}")
        for number in numbers
        for job in besides(pollux_oracle.jobs_of("2.0", number), pollux_oracle.jobs_of("1.0", number))
    ]
    jobs.sort(key=lambda job: job.submit_s)
    return cluster_of_t4(f"pollux 2.0-{'+'.join(numbers)} besides 1.0", jobs)


def unseen_workload(number: str) -> Workload:
    """The same jobs of one number, for nodes that are rented."""
    twice, once = load_workload(f"pollux-2.0-{number}"), load_workload(f"pollux-{number}")
    jobs = tuple(besides(twice.jobs, once.jobs))
    return replace(twice, name=f"{twice.name} besides {once.name}", jobs=jobs)
