"""Jobs that are cut into parts, from a job file to the end: real controller, agents and workers, under losses.

Whatever happens, every step is made once, and its loss is that of one process that is left alone, to the bit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from sublet_lab.notebook import noted
from tests.chaos.rig import rig
from tests.rigs import gpt_in_parts
from tests.rigs.gpt_in_parts import alone, said
from tests.rigs.sizes import FULL
from tests.rigs.struck_cloud import Struck

SCRIPT = Path(gpt_in_parts.__file__)
STEPS, PACE_MS = 60, 30.0  # of a step that waits for a story to happen
pytestmark = pytest.mark.timeout(400)


def job_file(folder, *, workers, stages, steps=STEPS, pace_ms=PACE_MS, fits_in=1, disk_s=0.0):
    path = folder / "job.yaml"
    path.write_text(
        f"name: gpt\nrun: {sys.executable} {SCRIPT} {folder} {steps} {pace_ms} {fits_in} {disk_s}\n"
        f"elastic: {{workers: {workers}}}\nparallel: {{stages: {stages}}}\n",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def submit(sublet, monkeypatch):
    """A job file by the command line, to the controller of a rig."""

    def submitted(world, *facts, **more):
        monkeypatch.setenv("SUBLET_STATE", str(world.state.path))
        answer = sublet("submit", job_file(*facts, **more), "-o", "json")
        assert answer.code == 0, answer.err
        return answer.json["job_id"]

    return submitted


def ends_as_one_process(world, job_id, folder, steps=STEPS):
    """Nobody is waited for any more; the copies in which each step was made."""
    (folder / "enough").touch()
    (job,) = world.until_ended(job_id, patience_s=200.0)
    assert (job["phase"], job["step"], job["steps_lost"]) == ("finished", steps, 0), job["error"]
    rows = said(folder)
    assert [step for step, _, _ in rows] == list(range(1, steps + 1))
    assert all(len(copies) == 1 for _, _, copies in rows)
    copies = [min(found) for _, _, found in rows]
    losses = alone(copies)
    assert [found for _, found, _ in rows] == [{loss} for loss in losses]
    ((run, kept),) = noted(folder / "runs").items()  # one for the whole job, whoever was rank 0
    assert run.endswith(job_id)
    assert kept["loss"] == [(step, float.fromhex(loss)) for step, loss in enumerate(losses, 1)]
    assert [step for step, _ in kept["sublet/workers"]] == list(range(1, steps + 1))
    world.down()
    world.audit()
    return copies


def test_a_job_file_with_stages_trains_in_parts_and_is_one_process_to_the_bit(submit, tmp_path):
    """And it is finished where its script stops early, amid an epoch."""
    with rig(policy="liveput", most_nodes=4) as world:
        world.start()
        job_id = submit(world, tmp_path, workers=4, stages=2, steps=10, pace_ms=1.0)
        assert set(ends_as_one_process(world, job_id, tmp_path, 10)) == {2}


def test_a_script_with_parts_whose_job_has_one_stage_trains_in_copies(submit, tmp_path):
    """The kernel knows of no grid: it is data parallel."""
    with rig(Struck, policy="liveput", most_nodes=2) as world:
        world.start()
        if not FULL:
            job_id = submit(world, tmp_path, workers=2, stages=1, steps=10, pace_ms=1.0)
            assert set(ends_as_one_process(world, job_id, tmp_path, 10)) == {2}
            return
        job_id = submit(world, tmp_path, workers="1..2", stages=1)
        world.until_grid(job_id, 2, 1)
        os.kill(world.workers()[0], signal.SIGKILL)
        world.until(lambda: world.job(job_id)["grid"] == "1 x 1", "one is left")
        world.until_grid(job_id, 2, 1)
        assert set(ends_as_one_process(world, job_id, tmp_path)) == {1, 2}


def test_a_worker_that_is_killed_costs_no_step_and_another_takes_its_place(submit, tmp_path):
    """With one copy: who keeps the part hands it on."""
    with rig(Struck, policy="liveput", most_nodes=2) as world:
        world.start()
        job_id = submit(world, tmp_path, workers=2, stages=2)
        world.until_grid(job_id, 1, 2)
        os.kill(world.workers()[0], signal.SIGKILL)
        world.until(lambda: world.events(job_id, "Moved"), "they have met again")
        world.until_grid(job_id, 1, 2)
        assert set(ends_as_one_process(world, job_id, tmp_path)) == {1}


def test_a_node_that_is_lost_leaves_a_copy_and_a_new_one_brings_it_back(submit, tmp_path):
    with rig(Struck, policy="liveput", most_nodes=4) as world:
        world.start()
        job_id = submit(world, tmp_path, workers="2..4", stages=2)
        world.until_grid(job_id, 2, 2)
        world.strike("supply:3")
        world.until_grid(job_id, 1, 2, spares=1)
        assert world.events(job_id, "Moved")[0].startswith("is 1 x 2 (within): 0.0 MB"), "what is kept comes later"
        world.strike("supply:4")
        world.until_grid(job_id, 2, 2)
        copies = ends_as_one_process(world, job_id, tmp_path)
        assert [copies[at] for at in range(len(copies)) if at == 0 or copies[at] != copies[at - 1]] == [2, 1, 2]


def test_notices_of_all_who_have_a_part_move_it_to_others_before_they_go(submit, tmp_path):
    """Both copies of part 1: who stays keeps it while the old grid trains, and nothing is left to be moved then."""
    with rig(Struck, policy="liveput", most_nodes=4, notice_s=600.0) as world:
        world.start()
        job_id = submit(world, tmp_path, workers="2..4", stages=2)
        world.until_grid(job_id, 2, 2)
        going = [each["node_id"] for each in world.job(job_id)["places"] if each["part"] == 1]
        world.strike("supply:4")  # and no more, so that nobody takes their place
        for node_id in going:
            world.strike(f"notice:{node_id}")
        world.until(lambda: world.job(job_id)["preemptions_noticed"] == len(going), "they are noticed")
        world.until(lambda: not set(going) & set(world.job(job_id)["node_ids"]), "they have left")
        world.until_grid(job_id, 1, 2)
        assert set(ends_as_one_process(world, job_id, tmp_path)) == {1, 2}


def test_a_fleet_that_grows_brings_another_copy(submit, tmp_path):
    with rig(Struck, policy="liveput", most_nodes=6) as world:
        world.start()
        world.strike("supply:3")
        job_id = submit(world, tmp_path, workers="3..6", stages=3)
        world.until_grid(job_id, 1, 3)
        world.strike("supply:6")
        world.until_grid(job_id, 2, 3)
        copies = ends_as_one_process(world, job_id, tmp_path)
        assert copies == sorted(copies)


def test_a_plan_changes_the_depth(submit, tmp_path):
    with rig(Struck, policy="by-the-book", most_nodes=6) as world:
        world.start()
        job_id = submit(world, tmp_path, workers="1..6", stages="auto")
        world.until_grid(job_id, 2, 3)
        world.strike("supply:5")
        world.until_grid(job_id, 2, 2, spares=1)
        world.strike("supply:6")
        world.until_grid(job_id, 2, 3)
        ends_as_one_process(world, job_id, tmp_path)


def test_a_spare_takes_the_place_of_one_that_is_killed(submit, tmp_path):
    with rig(Struck, policy="liveput", most_nodes=3) as world:
        world.start()
        job_id = submit(world, tmp_path, workers="2..3", stages=2)
        world.until_grid(job_id, 1, 2, spares=1)
        (first,) = [each["worker_id"] for each in world.job(job_id)["places"] if each["part"] == 0]
        os.kill(int((tmp_path / f"{first}.pid").read_text()), signal.SIGKILL)
        world.until(lambda: world.events(job_id, "Moved"), "they have met again")
        world.until_grid(job_id, 1, 2, spares=1)
        assert set(ends_as_one_process(world, job_id, tmp_path)) == {1}


def test_a_controller_that_dies_amid_training_finds_its_grid_again(submit, tmp_path):
    with rig(Struck, policy="liveput", most_nodes=4) as world:
        world.start()
        job_id = submit(world, tmp_path, workers="2..4", stages=2)
        world.until_grid(job_id, 2, 2)
        before = {each["worker_id"]: each for each in world.job(job_id)["places"]}
        world.kill()
        world.start()
        world.until_grid(job_id, 2, 2)
        assert {each["worker_id"]: each for each in world.job(job_id)["places"]} == before
        os.kill(world.workers()[0], signal.SIGKILL)
        world.until(lambda: world.events(job_id, "Moved"), "they have met again")
        world.until_grid(job_id, 2, 2)
        ends_as_one_process(world, job_id, tmp_path)


def test_a_controller_that_dies_amid_a_change_of_depth_brings_it_to_an_end(submit, tmp_path):
    """Orders are out, some have heard them, and a worker dies with it."""
    with rig(Struck, policy="by-the-book", most_nodes=6) as world:
        world.start()
        job_id = submit(world, tmp_path, workers="1..6", stages="auto")
        world.until_grid(job_id, 2, 3)
        world.strike("supply:4")
        world.until(lambda: world.job(job_id)["grid"] != "2 x 3", "others are seated")
        step = world.job(job_id)["step"]
        world.kill()
        os.kill(world.workers()[-1], signal.SIGKILL)
        world.start()
        world.until(lambda: world.job(job_id).get("step", 0) > step + 1, "they have met again")
        ends_as_one_process(world, job_id, tmp_path)


def test_a_model_that_runs_out_of_memory_uncut_trains_in_as_few_parts_as_fit(submit, tmp_path, sublet):
    with rig(Struck, policy="liveput", most_nodes=2) as world:
        world.start()
        job_id = submit(world, tmp_path, workers=2, stages="auto", steps=20, fits_in=2)
        world.until_grid(job_id, 1, 2)
        job, (why,) = world.job(job_id), world.events(job_id, "Memory")
        assert why == "uncut it ran out of memory: it has 2 or more"
        assert (job["failures_user"], job["failures_infra"]) == (0, 0)
        assert why in sublet("explain", job_id).out
        assert set(ends_as_one_process(world, job_id, tmp_path, 20)) == {1}


@pytest.mark.parametrize("seed", range(10) if FULL else [3])
def test_losses_about_the_last_step_cost_none_and_nobody_waits_for_the_others(submit, tmp_path, seed):
    """It is made, and not kept yet: disks are slow. In the first two grids it runs out of memory, and others join."""
    rng, steps = random.Random(seed), 24
    with rig(Struck, policy="liveput", most_nodes=9, speedup=36.0) as world:
        world.start()
        job_id = submit(world, tmp_path, workers="3..9", stages="auto", steps=steps, pace_ms=5.0, fits_in=3, disk_s=2.0)
        (tmp_path / "enough").touch()
        at = rng.choice([steps - 2, steps, steps])
        world.until(lambda: world.job(job_id).get("step", 0) >= at, "it is about to end")
        for verb in rng.sample(["kill", "notice"], 2):
            nodes = [each["node_id"] for each in world.job(job_id)["places"]]
            if nodes:
                world.strike(f"{verb}:{rng.choice(nodes)}")
            time.sleep(rng.random())
        ends_as_one_process(world, job_id, tmp_path, steps)


NORMED = """
import torch
from torch.utils.data import TensorDataset
from sublet import train
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
data = TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = lambda output, batch: torch.nn.functional.mse_loss(output, batch[1])
with train.session(model, optimizer, data, global_batch=4, micro_batch=2, epochs=3, loss=loss) as s:
    for batch in s:
        s.step(batch)
"""


def test_a_sequence_that_cannot_be_in_stages_is_given_up_in_words_where_the_job_asks_for_stages(
    sublet, monkeypatch, tmp_path
):
    script, path = tmp_path / "normed.py", tmp_path / "job.yaml"
    script.write_text(NORMED, encoding="utf-8")
    run = f"run: {sys.executable} {script}\nelastic: {{workers: 2}}\nparallel: {{stages: 2}}\n"
    path.write_text(f"name: normed\n{run}", encoding="utf-8")
    with rig(policy="liveput", most_nodes=2) as world:
        world.start()
        monkeypatch.setenv("SUBLET_STATE", str(world.state.path))
        job_id = sublet("submit", path, "-o", "json").json["job_id"]
        (job,) = world.until_ended(job_id, patience_s=200.0)
        assert job["phase"] == "failed"
        assert job["step"] == 0
        assert "batch statistics" in job["error"]
        assert "layer or group norm" in job["error"]
        world.down()
        world.audit()
