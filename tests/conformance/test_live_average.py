"""Live there is no forecast: what an average buys follows from the jobs that have come, for real jobs too."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.testing.paced.run import PacedJob, run_paced

MOST = 3
FLAGS = {"samples": 600, "features": 15, "batch": 16, "floor-ms": 25, "sample-ms": 5}


@pytest.mark.parametrize(("policy", "gpus"), [("boa", 1), ("fifo", MOST)])
def test_boa_narrows_jobs_to_what_an_average_pays_for_where_first_come_first_served_gives_all(policy, gpus):
    """There are nodes enough for all at their most; two jobs within an hour are more than 3 cents an hour pay for."""
    jobs = run_paced(
        [PacedJob(name=name, most=MOST, flags=FLAGS) for name in ("first", "second")],
        policy=policy,
        average_usd_per_h=0.03,
        speedup=200.0,
        most_nodes=2 * MOST,
        lease_s=30.0,
    )
    assert {name: job.view["phase"] for name, job in jobs.items()} == dict.fromkeys(jobs, "finished")
    assert {name: {shape.gpus for shape in job.orders} for name, job in jobs.items()} == {name: {gpus} for name in jobs}
