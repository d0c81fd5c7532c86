"""A model in shards, from a job to its end: real controller, agents and workers, which are killed and resized.

Each start goes on with the bits of an earlier step, and the loss of every step is that of one process within rounding.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.chaos.rig import rig
from tests.rigs import mlp_in_shards
from tests.rigs.mlp_in_shards import alone, said

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 200.0


def until_it_trains(world, folder, workers, lives):
    """So many train, in a start after so many others, and have saved."""

    def so():
        known = said(folder)
        return len(known) > lives and known[-1][-1]["world"] == workers and len(known[-1]) > 5

    world.until(so, f"{workers} train", PATIENCE_S)
    saved = world.job
    world.until(lambda: list((world.state.path / "checkpoints").rglob("*.distcp")), "they have saved", PATIENCE_S)
    return saved


def scaled(world, job_id, workers):
    world.post(f"jobs/{job_id}/scale", {"low": workers, "high": workers})


def test_a_kill_and_one_two_four_and_two_workers_are_one_process_within_rounding(tmp_path):
    with rig(policy="max-speedup", most_nodes=4) as world:
        world.start()
        argv = (sys.executable, str(Path(mlp_in_shards.__file__)), str(tmp_path))
        job_id = world.submit(argv=argv, sdk=False, grace_s=20.0, min_workers=1, max_workers=1)
        until_it_trains(world, tmp_path, 1, 0)
        scaled(world, job_id, 2)
        until_it_trains(world, tmp_path, 2, 1)
        lives = len(said(tmp_path))
        os.kill(world.workers()[-1], signal.SIGKILL)
        until_it_trains(world, tmp_path, 2, lives)
        for workers in (4, 2):
            lives = len(said(tmp_path))
            scaled(world, job_id, workers)
            until_it_trains(world, tmp_path, workers, lives)
        (tmp_path / "enough").touch()
        (view,) = world.until_ended(job_id, patience_s=PATIENCE_S)
        assert view["phase"] == "finished", view["error"]
        world.down()
        world.audit()
    lives = said(tmp_path)
    states = {}
    for rows in lives:
        first, *steps = rows
        assert first["step"] == 0 or states[first["step"]] == first["state"]
        for row in steps:
            states[row["step"]] = row["state"]
    widths = [rows[0]["world"] for rows in lives]
    assert widths == [1, 2, 2, 4, 2]
    planned = [rows[0]["step"] == before[-1]["step"] for before, rows in zip(lives, lives[1:], strict=False)]
    assert planned == [True, False, True, True]
    losses = {row["step"]: row["loss"] for rows in lives for row in rows[1:]}
    expected, _ = alone(max(losses))
    assert [losses[step] for step in range(1, max(losses) + 1)] == pytest.approx(expected, rel=1e-9)
