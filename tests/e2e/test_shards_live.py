"""Jobs whose optimizer's state is in ranges, from a job file to the end: real controller, agents and workers.

Whatever happens, each sample of each step is taken once, and its loss is that of one process that is left alone, within
rounding.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from sublet.domain.shards import ranges_for
from tests.chaos.rig import rig
from tests.rigs import mlp_in_ranges
from tests.rigs.mlp_in_ranges import BATCH, alone, said
from tests.rigs.struck_cloud import Struck

SCRIPT = Path(mlp_in_ranges.__file__)
STEPS, PACE_MS = 60, 60.0  # of a step that waits for a story to happen
MOMENTS = 2 * (7 * 16 + 2 * 17)  # numbers, of all parameters
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def submit(sublet, monkeypatch):
    """A job file by the command line, to the controller of a rig."""

    def submitted(world, folder, workers):
        monkeypatch.setenv("SUBLET_STATE", str(world.state.path))
        path = folder / "job.yaml"
        path.write_text(
            f"name: mlp\nrun: {sys.executable} {SCRIPT} {folder} {STEPS} {PACE_MS}\n"
            f"elastic: {{workers: {workers}}}\nparallel: {{shards: on}}\n",
            encoding="utf-8",
        )
        answer = sublet("submit", path, "-o", "json")
        assert answer.code == 0, answer.err
        return answer.json["job_id"]

    return submitted


def until_width(world, folder, width):
    """Steps are made by so many, as they have written down themselves."""

    def so():
        steps = list(said(folder).items())[-2:]
        return len(steps) == 2 and all(len(rows) == width == rows[0]["world"] for _, rows in steps)

    world.until(so, f"steps by {width} workers", 200.0)


def ends_as_one_process(world, job_id, folder):
    """Nobody is waited for any more; by how many workers the steps were made, one after the other."""
    (folder / "enough").touch()
    (job,) = world.until_ended(job_id, patience_s=200.0)
    assert (job["phase"], job["step"], job["steps_lost"]) == ("finished", STEPS, 0), job["error"]
    steps = said(folder)
    assert list(steps) == list(range(STEPS))
    widths = []
    for step, (samples, loss) in enumerate(alone(STEPS)):
        rows = steps[step]
        assert sorted(sample for row in rows for sample in row["samples"]) == samples, step
        mean = sum(row["loss"] * len(row["samples"]) for row in rows) / BATCH
        assert mean == pytest.approx(loss, rel=1e-12, abs=1e-13), step
        world_of = rows[0]["world"]
        if not widths or widths[-1] != world_of:
            widths.append(world_of)
        if step > 1 and len({row["world"] for row in steps[step - 1] + rows}) == 1:  # no change between them
            kept = {row["kept"] for row in rows}
            assert max(kept) <= -(-MOMENTS // ranges_for(world_of)) + 2, (step, kept)
    world.down()
    world.audit()
    return widths


def kill_one(world, folder):
    """Without a word; the others, and one in its place, make the next steps."""
    generation = newest(folder)
    os.kill(world.workers()[0], signal.SIGKILL)
    world.until(lambda: newest(folder) > generation, "they have met again", 200.0)


def newest(folder):
    return max((row["generation"] for rows in said(folder).values() for row in rows), default=-1)


def test_a_group_that_grows_and_loses_a_node_and_a_worker_is_one_process_within_rounding(submit, tmp_path):
    with rig(Struck, policy="liveput", most_nodes=5) as world:
        world.start()
        world.strike("supply:3")
        job_id = submit(world, tmp_path, "2..5")
        until_width(world, tmp_path, 3)
        world.strike("supply:5")
        until_width(world, tmp_path, 5)
        world.strike("supply:4")
        until_width(world, tmp_path, 4)
        kill_one(world, tmp_path)
        until_width(world, tmp_path, 4)
        assert ends_as_one_process(world, job_id, tmp_path)[:3] == [3, 5, 4]


def test_those_who_leave_with_notice_hand_their_ranges_over(submit, tmp_path):
    """Who they are, the nodes decide: with two ranges on four workers they may be all who hold one of them."""
    with rig(Struck, policy="liveput", most_nodes=4, notice_s=600.0) as world:
        world.start()
        job_id = submit(world, tmp_path, "2..4")
        until_width(world, tmp_path, 4)
        world.strike("supply:4")  # and no more, so that nobody takes their place
        for node_id in sorted(world.job(job_id)["node_ids"])[:2]:
            world.strike(f"notice:{node_id}")
        until_width(world, tmp_path, 2)
        assert ends_as_one_process(world, job_id, tmp_path)[-1] == 2


def test_a_controller_that_dies_amid_training_finds_its_ranges_again(submit, tmp_path):
    with rig(Struck, policy="liveput", most_nodes=4) as world:
        world.start()
        job_id = submit(world, tmp_path, "2..4")
        until_width(world, tmp_path, 4)
        world.kill()
        world.start()
        kill_one(world, tmp_path)
        until_width(world, tmp_path, 4)
        assert set(ends_as_one_process(world, job_id, tmp_path)) <= {3, 4}
