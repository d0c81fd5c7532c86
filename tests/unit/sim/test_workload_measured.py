"""Jobs of a workload scale as a script was measured to: those of its name, or all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.job import Job
from sublet.errors import BadInput
from sublet.perf.live.rows import StepRow
from sublet.perf.live.speed import LiveSpeed
from sublet.perf.live.stored import StoredProfile
from sublet.perf.speedup import Linear
from sublet.sim.workloads.measured import with_profile
from sublet.sim.workloads.workload import Workload

# At a batch of 64 a second GPU halves nothing: 0.1 s a step on one, 0.08 s on two.
ROWS = (
    StepRow(gpu="T4", gpus=1, samples=64, step_s=0.1, piece_s=0.1),
    StepRow(gpu="T4", gpus=2, samples=32, step_s=0.08, piece_s=0.06, wait_s=0.02),
)
FACTS = {"name": "net", "script": "ab", "gpu": "T4", "torch": "", "date": "2026", "batches": (64, 64, 64), "batch": 64}
PROFILE = StoredProfile(**FACTS, noise=None, rows=ROWS)


def a_workload(*models, kinds=None, gpus=2):
    speed = Linear(kinds=kinds or {})
    jobs = [
        Job(id=f"j{at}", submit_s=0.0, work=100.0, speed=speed, gpus=gpus, max_gpus=4, model=model)
        for at, model in enumerate(models)
    ]
    return Workload(name="w", jobs=tuple(jobs))


def test_jobs_of_its_name_take_its_speed_and_the_others_keep_theirs():
    own, other = with_profile(a_workload("net", "bert"), [PROFILE]).jobs
    assert isinstance(own.speed, LiveSpeed)
    assert isinstance(other.speed, Linear)
    assert other.work == 100.0


def test_all_jobs_take_it_where_none_is_called_so():
    found = with_profile(a_workload("bert", ""), [PROFILE])
    assert all(isinstance(job.speed, LiveSpeed) for job in found.jobs)
    assert "the speed of 2 jobs is as net was measured on T4" in found.notes[-1]
    assert "batches stay as they are" in found.notes[-1]


def test_a_job_is_as_long_as_before_on_what_it_asked_for_and_scales_as_measured():
    (job,) = with_profile(a_workload("net"), [PROFILE]).jobs
    assert job.speed.seconds("T4", (2,), 0.0, job.work) == pytest.approx(50.0)  # 100 s of one GPU, on two
    assert job.work == pytest.approx(50.0 * 64 / 0.08, rel=0.02)
    assert job.speed.seconds("T4", (1,), 0.0, job.work) == pytest.approx(50.0 * 0.1 / 0.08, rel=0.02)


def test_a_job_that_has_no_length_there_is_refused():
    with pytest.raises(BadInput, match="job j0 has no length on 2 x T4"):
        with_profile(a_workload("net", kinds={"A100": 1.0}), [PROFILE])


def test_a_job_that_is_wider_than_its_batch_is_no_faster_than_at_as_many_gpus_as_samples():
    wide = Workload(name="w", jobs=(Job(id="j0", submit_s=0.0, work=1.0, speed=Linear(), gpus=128),))
    (job,) = with_profile(wide, [PROFILE]).jobs  # it has 64 samples a step: half of the workers have none
    assert job.speed.rate("T4", (128,), 0.0) <= job.speed.rate("T4", (64,), 0.0)


@pytest.mark.parametrize(("device", "warns"), [("cpu", True), ("Tesla T4", False), ("", False)])
def test_that_it_ran_on_cpus_is_said(device, warns):
    found = with_profile(a_workload("net"), [replace(PROFILE, device=device)])
    assert ("it ran on CPUs, for which T4 is but a name" in found.notes[-1]) is warns
