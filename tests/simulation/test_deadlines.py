"""Deadlines on a GPU of one's own: all are met that the earliest deadline first would meet."""

from __future__ import annotations

import math
import random

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.workloads.csvformat import read_csv
from sublet.testing.values import a_job, an_offer

SETS = 200
RESTART_S = 30.0
ONE_GPU = Cloud(
    offers=[an_offer("own", gpus=1, market=Market.ON_DEMAND)],
    limits={"own": Limit(min_nodes=1, max_nodes=1)},
)


def ended_s(jobs):
    """When each has ended under `price`."""
    run = simulate(jobs, Price(), ONE_GPU, checked=True)
    assert not run.unfinished
    return {job.id: run.record.jobs[job.id].finish_s for job in jobs}


def missed(jobs, end_s, margin_s=0.0):
    return [job.id for job in jobs if job.deadline_s is not None and end_s[job.id] + margin_s > job.deadline_s]


def earliest_deadline_first(jobs):
    """When each has ended if the earliest deadline has the GPU at any time, with a pause at every start."""
    left_s, end_s, now_s, last = {job.id: job.work for job in jobs}, {}, 0.0, None
    arrivals_s = sorted({job.submit_s for job in jobs})
    pause_s = 0.0
    while len(end_s) < len(jobs):
        here = [job for job in jobs if job.submit_s <= now_s and job.id not in end_s]
        until_s = next((at_s for at_s in arrivals_s if at_s > now_s), math.inf)
        if not here:
            now_s = until_s
            continue
        job = min(here, key=lambda job: (math.inf if job.deadline_s is None else job.deadline_s, job.submit_s))
        if job.id != last:
            last, pause_s = job.id, job.restart_s
        spent_s = min(pause_s + left_s[job.id], until_s - now_s)
        trained_s = max(0.0, spent_s - pause_s)
        pause_s = max(0.0, pause_s - spent_s)
        left_s[job.id] -= trained_s
        now_s += spent_s
        if left_s[job.id] <= 1e-6:
            end_s[job.id] = now_s
    return end_s


def drawn(seed):
    """Rigid jobs, some of them with a deadline: none has much more time than it needs."""
    rng, jobs = random.Random(seed), []
    hour_s = 3600.0 * rng.choice([0.1, 0.3, 1.0])
    for at in range(rng.randint(2, 9)):
        submit_s, work = rng.choice([0.0, rng.uniform(0.0, 8.0)]) * hour_s, rng.uniform(0.1, 3.0) * hour_s
        deadline_s = submit_s + work * rng.uniform(1.05, 5.0) if rng.random() < 0.6 else None
        jobs.append(a_job(f"j{at}", submit_s=submit_s, work=work, restart_s=RESTART_S, deadline_s=deadline_s))
    return sorted(jobs, key=lambda job: job.submit_s)


def sets_that_can_be_met():
    """Of which the earliest deadline first meets all, with the time of a start to spare."""
    found, seed = [], 0
    while len(found) < SETS:
        jobs = drawn(seed)
        seed += 1
        if any(job.deadline_s for job in jobs) and not missed(jobs, earliest_deadline_first(jobs), RESTART_S):
            found.append(jobs)
    return found


def test_whoever_would_come_too_late_behind_a_shorter_job_goes_before_it(tmp_path):
    """A takes 3 h and is due in 3.2 h; B takes 1 h, and is due whenever."""
    rows = ["job_id,submit_s,duration_s,gpus,deadline_s", "B,0,3600,1,", "A,0,10800,1,11520"]
    (tmp_path / "jobs.csv").write_text("\n".join(rows) + "\n")
    end_s = ended_s(read_csv(tmp_path / "jobs.csv").jobs)
    assert end_s == {"A": 10_800.0, "B": 14_400.0}


def test_what_the_earliest_deadline_first_meets_on_one_gpu_is_met():
    late = {at: missed(jobs, ended_s(jobs)) for at, jobs in enumerate(sets_that_can_be_met())}
    assert {at: ids for at, ids in late.items() if ids} == {}
