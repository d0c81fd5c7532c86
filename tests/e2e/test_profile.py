"""`sublet profile`: a real script in real workers, measured at several widths, and nothing of it left but a file."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import pytest

from sublet.perf.live.rows import Source, StepRow
from sublet.perf.live.speed import LiveSpeed
from sublet.perf.live.stored import StoredProfile
from sublet.runtime.controller.memory.records import kernel_job
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.profiling.run import profile_script
from tests.rigs.asgi import serving

BASE_S, SAMPLE_S = 0.004, 0.0001
PACED = f"""
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from sublet import train

here = Path(sys.argv[1])
(here / "pids" / str(os.getpid())).touch()
model = torch.nn.Linear(4, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.ones(256, 4), torch.ones(256, 1))
more = {{"epochs": 1, "batch_range": (64, 256), "checkpoint_dir": here / "kept"}}
more["scheduler"] = torch.optim.lr_scheduler.OneCycleLR(sgd, 0.1, total_steps=4)  # a fifth step would raise
with train.session(model, sgd, data, global_batch=64, **more) as s:
    for _ in s.epochs():
        for x, y in s:
            time.sleep({BASE_S} + {SAMPLE_S} * len(x))
            s.step(torch.nn.functional.mse_loss(model(x), y))
        (here / "an epoch is over").touch()
(here / "it has finished").touch()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "pids").mkdir()
    path = tmp_path / "paced.py"
    path.write_text(PACED)
    return path


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def scratch(monkeypatch):
    """Where temporary folders are made; a short path, because sockets are in them."""
    with tempfile.TemporaryDirectory(prefix="sp-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_script_is_measured_in_real_workers_and_the_next_run_begins_with_it(tmp_path, script, scratch):
    spec = job_from_command([sys.executable, str(script), str(tmp_path)])
    found = profile_script(spec, widths=[1, 2], batches=[128], seconds=120.0, folder=tmp_path / "state" / "profiles")
    assert not found.interrupted
    assert any("measured on CPUs, not on a GPU: T4 is but a name" in note for note in found.notes)
    assert [(each.width, each.batch) for each in found.seen] == [(1, 128), (2, 128)]
    for each in found.seen:
        assert each.row.samples == 128 // each.width
        assert each.row.piece_s >= 0.99 * (BASE_S + SAMPLE_S * each.row.samples)  # it slept so long
    # An epoch of two steps was over many times, and the script has seen none.
    assert {path.name for path in tmp_path.iterdir()} == {"pids", "paced.py", "state"}
    workers = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert len(workers) == 2
    assert not any(is_alive(pid) for pid in workers)
    assert not list(scratch.glob("sublet-profile-*"))
    (profile,) = found.profiles
    assert (profile.name, profile.batches) == ("paced", (64, 64, 256))

    async def next_run():
        async with serving(tmp_path) as server:
            taken = await server.api.submit(job_from_command(["python", str(script)], workers=(1, 2)))
            record = server.api.record(taken["job_id"])
            record.group.work = 1e9  # as its session will say
            return kernel_job(record, 1.0).speed

    speed = asyncio.run(next_run())
    assert isinstance(speed, LiveSpeed)
    assert {(row.gpus, row.samples, row.source) for row in speed.rows} >= {
        (1, 128, Source.EARLIER),
        (2, 64, Source.EARLIER),
    }


def test_what_cannot_be_measured_is_refused_before_anything_starts(sublet, tmp_path, script):
    plain = tmp_path / "plain.py"
    plain.write_text("print('no session')\n")
    for words, named in (
        ([plain], "one that opens a sublet.train session"),
        ([tmp_path / "gone.py"], "a script that exists"),
        ([script, "--widths", "1,64"], "--widths = '1,64' is not allowed; it must be at most 16"),
        ([script, "--widths", "1,x"], "--widths = '1,x' is not allowed; it must be whole numbers"),
        ([script, "--batches", "0"], "--batches = '0' is not allowed"),
        ([script, "--seconds", "0"], "--seconds = 0.0 is not allowed"),
        ([script, "--slots-per-node", "0"], "--slots-per-node = 0 is not allowed"),
    ):
        answer = sublet("profile", *words)
        assert answer.code == 2
        assert named in answer.err


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The folder of the files of a job that was measured at two widths."""
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    rows = tuple(
        StepRow(gpu="T4", gpus=gpus, samples=128 // gpus, step_s=0.05 + 0.1 / gpus, piece_s=0.04 + 0.1 / gpus)
        for gpus in (1, 2)
    )
    facts = {"name": "my-net", "script": "ab", "gpu": "T4", "torch": "", "date": "2026-11-16", "batch": 128}
    profile = StoredProfile(**facts, batches=(128, 128, 128), noise=None, rows=rows)
    (tmp_path / "state" / "profiles").mkdir(parents=True)
    path = tmp_path / "state" / "profiles" / "my-net.csv"
    path.write_text(profile.to_text())
    return path


def test_jobs_are_simulated_and_planned_as_they_were_measured_to_scale(sublet, measured, jobs_csv):
    one = jobs_csv.with_name("one.csv")
    one.write_text("job_id,submit_s,duration_s,gpus,min_gpus\na,0,3600,2,1\n")
    for name in ("my-net", measured):
        found = sublet("simulate", one, "--gpus", 1, "--profile", name, "--json", "-q").json
        # An hour on two GPUs with steps of 100 ms; on one they take 150 ms.
        assert found["metrics"]["mean_s"] == pytest.approx(5400.0, rel=0.05)
        assert any("the speed of 1 job is as my-net was measured on T4" in note for note in found["notes"])
    plan = sublet("plan", jobs_csv, "--budget", 20, "--profile", "my-net", "--json").json
    assert any("my-net was measured" in note for note in plan["notes"])
    assert {offer["gpu"] for offer in plan["offers"]} == {"T4"}


def test_machines_are_advised_for_what_was_measured(sublet, measured):
    for name in ("my-net", measured):
        answer = sublet("advise", "--profile", name, "--samples", "5M", "--kinds", "T4", "--json")
        assert answer.code == 0
        assert "my-net (measured)" in answer.out


def test_a_name_that_is_no_measured_one_is_refused_with_what_is(sublet, measured, jobs_csv):
    assert "did you mean my-net?" in sublet("simulate", jobs_csv, "--profile", "my-nett").err
    assert "one that was measured here" in sublet("simulate", jobs_csv, "--profile", "muri").err
    measured.write_text(measured.read_text().replace('"T4"', "4"))
    answer = sublet("plan", jobs_csv, "--budget", 20, "--profile", measured)
    assert answer.code == 2
    assert "gpu = 4 is not allowed" in answer.err
    assert "next: measure it anew" in answer.err
