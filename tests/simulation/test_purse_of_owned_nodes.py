"""A purse that also pays for nodes that are always held: as it runs out they go, and no policy counts on them."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money
from sublet.policies.fifo import Fifo
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.srtf import Srtf


@pytest.mark.parametrize("policy", [Fifo(), Srtf()], ids=lambda policy: type(policy).__name__)
def test_as_a_purse_runs_out_jobs_are_promised_only_the_owned_nodes_that_are_left(policy):
    offer = an_offer("o", pool="p", gpus=1, usd_per_h="1", wind_down_s=30.0)
    cloud = Cloud(
        offers=[offer],
        limits={"o": Limit(min_nodes=8, max_nodes=8)},
        budget=Budget(purse=Money.from_usd("4")),
        physics=Physics(release_s=30.0),
    )
    jobs = [a_job(f"j{number}", work=1e5, gpus=1, restart_s=15.0) for number in range(12)]
    run = simulate(jobs, policy, cloud, checked=True)
    assert len(run.unfinished) == 12  # all stop, and can be resumed
    assert Money.from_usd("3.9") < run.record.spend[-1][1] <= Money.from_usd("4")
