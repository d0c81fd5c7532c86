"""Notices on a real market: what the cloud has announced that it will take is not rented again, by any policy."""

from __future__ import annotations

import math

import pytest

from sublet.domain.actions import RentNode
from sublet.domain.events import AvailabilityChanged
from sublet.market.traces import load_trace
from sublet.perf.speedup import Amdahl
from sublet.policies.equal import Equal
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup


def market():
    for at_s, _, nodes in load_trace("bamboo-p3").events(0.0, math.inf):
        yield AvailabilityChanged(float(at_s), "spot", nodes)


@pytest.mark.parametrize("notice_s", [30.0, 120.0])
@pytest.mark.parametrize("policy", [MaxSpeedup(), Equal()])
def test_nobody_rents_in_circles(policy, notice_s):
    """Before falls were kept: 135 rents, 49 refusals and 12 losses (notice 30 s), and jobs that ended 12 % later."""
    rents = 0

    def watch(event, actions):
        nonlocal rents
        rents += sum(isinstance(action, RentNode) for action in actions)

    job = a_job("j", work=576_000.0, gpus=32, restart_s=10.0, min_gpus=1, speed=Amdahl(parallel=0.999))
    cloud = Cloud(offers=(an_offer("spot", gpus=1),), physics=Physics(notice_s=notice_s), market=market)
    run = simulate([job], policy, cloud, watch=watch)
    assert run.record.refusals == 0
    assert run.metrics.losses <= 1
    assert rents == 80
    assert run.metrics.mean_s < 24_750.0
