"""What the study of live grids measures beforehand: a restart of real processes, as their diaries tell it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.demo.grid.diaries import accounts
from sublet.demo.grid.moves import RESTART
from sublet.demo.grid.run import GridJob, live
from sublet.runtime.settings import Settings
from sublet_lab.gridded.study import Walk


@pytest.mark.timeout(300)
def test_a_restart_is_seen_as_one_and_every_sample_is_taken_once(tmp_path):
    job = GridJob(samples=288, unit_ms=20.0, stages=0, least=2, most=2)  # 12 steps of 0.7 s: it is stopped amid them
    walk = Walk(grids=((1, 2), None, (1, 2)), each_s=4.0, gpus=2)
    lived = live(Settings(state_dir=str(tmp_path), most_nodes=2), job, print, policy=walk)
    assert lived.view["phase"] == "finished", lived.view["error"]
    assert [move.kind for move in lived.moves] == [RESTART]
    assert accounts(lived.rows, steps=job.steps, batch=job.batch, samples=job.samples).clean
