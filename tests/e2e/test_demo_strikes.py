"""What the demonstration scripts comes by the work done: to jobs of any speed, before they end."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.demo.scene import SPEEDUP, demo_settings
from sublet.testing.paced.run import PacedJob, run_paced

QUICK = {"samples": 200, "features": 15, "batch": 16, "floor-ms": 10, "sample-ms": 2}
SLOW = {**QUICK, "samples": 1200, "floor-ms": 50}


@pytest.mark.parametrize("flags", [(QUICK, SLOW, SLOW), (SLOW, SLOW)])
def test_a_notice_and_a_kill_come_to_jobs_that_end_long_before_an_hour(flags, tmp_path):
    jobs = run_paced(
        [PacedJob(name=f"job{at}", most=2, flags=each) for at, each in enumerate(flags)],
        policy="price",
        strikes=demo_settings(tmp_path).strikes,
        speedup=SPEEDUP,
        most_nodes=4,
        lease_s=30.0,
    )
    views = [job.view for job in jobs.values()]
    assert [view["phase"] for view in views] == ["finished"] * len(flags)
    assert sum(view["preemptions_noticed"] for view in views) == 1
    assert sum(view["preemptions_unnoticed"] for view in views) == 1
