"""A model in shards, from a job to its end: real controller, agents and workers, which are killed and resized.

Each start goes on with the bits of an earlier step, and the loss of every step is that of one process within rounding.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.chaos.rig import rig
from tests.rigs import mlp_in_shards
from tests.rigs.mlp_in_shards import alone, said

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 200.0
KILL = 0


def until_it_trains(world, job_id, folder, workers, lives):
    """So many train, in a start after so many others, and have saved."""

    def so():
        known = said(folder)
        begun = known[-1][0] if len(known) > lives else {"world": 0, "step": 0}
        return begun["world"] == workers and (world.job(job_id)["checkpoint_step"] or 0) > begun["step"]

    world.until(so, f"{workers} train and save", PATIENCE_S)


def scaled(world, job_id, workers):
    world.post(f"jobs/{job_id}/scale", {"low": workers, "high": workers})


def test_a_kill_and_one_two_four_and_two_workers_are_one_process_within_rounding(tmp_path):
    with rig(policy="max-speedup", most_nodes=4) as world:
        world.start()
        argv = (sys.executable, str(Path(mlp_in_shards.__file__)), str(tmp_path))
        job_id = world.submit(argv=argv, sdk=False, grace_s=20.0, max_workers=4)
        scaled(world, job_id, 1)
        until_it_trains(world, job_id, tmp_path, 1, 0)
        for workers in (2, KILL, 4, 2):
            lives = len(said(tmp_path))
            if workers == KILL:
                os.kill(world.workers()[-1], signal.SIGKILL)
            else:
                scaled(world, job_id, workers)
            until_it_trains(world, job_id, tmp_path, workers or 2, lives)
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
    last = lives[-5:]  # before it was scaled to one, more may have begun
    assert [rows[0]["world"] for rows in last] == [1, 2, 2, 4, 2]
    planned = [rows[0]["step"] == before[-1]["step"] for before, rows in pairwise(last)]
    assert (planned[0], *planned[2:]) == (True, True, True)
    losses = {row["step"]: row["loss"] for rows in lives for row in rows[1:]}
    expected, _ = alone(max(losses))
    assert [losses[step] for step in range(1, max(losses) + 1)] == pytest.approx(expected, rel=1e-9)
