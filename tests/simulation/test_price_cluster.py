"""`price` on a cluster that is paid for anyway: it starves nobody, and short jobs do not wait for long ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl, Linear
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import a_job, an_offer

HOUR_S = 3600.0


def owned(gpus):
    offer = an_offer("mine", gpus=gpus, market=Market.ON_DEMAND)
    return Cloud(offers=(offer,), limits={offer.id: Limit(min_nodes=1, max_nodes=1)})


def a_crowd(hours, *, gpus=4):
    """Rigid jobs of ten minutes that keep all GPUs busy, one more arriving before each one ends."""
    return [
        a_job(f"short-{at}", at * 570.0, work=600.0 * gpus, gpus=gpus, min_gpus=gpus, max_gpus=gpus)
        for at in range(int(hours * HOUR_S / 570.0))
    ]


@pytest.mark.parametrize("patience_h", [1.0, 3.0])
def test_a_long_job_is_not_starved_by_a_stream_of_short_ones(patience_h):
    """It waits for its patience, and for those that had waited as long before it."""
    long_job = a_job("long", 1.0, work=5 * HOUR_S * 4, gpus=4, min_gpus=4, max_gpus=4)
    run = simulate([long_job, *a_crowd(12.0)], Price(patience_s=patience_h * HOUR_S), owned(4), checked=False)
    waited_s = run.record.jobs["long"].start_s - 1.0
    assert waited_s <= patience_h * HOUR_S + 600.0 + 1.0
    assert not run.unfinished


def test_with_endless_patience_it_would_be():
    long_job = a_job("long", 1.0, work=5 * HOUR_S * 4, gpus=4, min_gpus=4, max_gpus=4)
    run = simulate([long_job, *a_crowd(12.0)], Price(patience_s=1e9), owned(4))
    assert run.record.jobs["long"].start_s > 11 * HOUR_S


def test_nobody_waits_so_that_others_can_be_wider():
    jobs = [a_job(f"j{at}", work=(1 + 9 * at) * HOUR_S, speed=Amdahl(parallel=0.9), max_gpus=4) for at in range(4)]
    run = simulate(jobs, Price(), owned(4), checked=True)
    assert run.metrics.mean_wait_s == 0.0


@pytest.mark.parametrize("knows", list(WorkBelief))
def test_whatever_it_knows_all_jobs_end_and_no_gpu_is_idle_while_somebody_waits(knows):
    jobs = [
        a_job(f"j{at}", at * 60.0, work=(at + 1) * 600.0, speed=Amdahl(parallel=0.9), max_gpus=4, restart_s=10.0)
        for at in range(20)
    ]
    run = simulate(jobs, Price(knows=knows), owned(8), checked=True)
    assert not run.unfinished
    assert run.metrics.utilisation > 0.6


def test_knowing_the_work_that_is_left_helps():
    jobs = [
        a_job(f"j{at}", at * 30.0, work=(40.0 if at % 4 else 1.0) * 600.0, speed=Amdahl(parallel=0.95), max_gpus=8)
        for at in range(40)
    ]
    times = {knows: simulate(jobs, Price(knows=knows), owned(8)).metrics.mean_s for knows in WorkBelief}
    assert times[WorkBelief.DECLARED] < times[WorkBelief.NOTHING]


def test_weights_count():
    light = [a_job(f"light-{at}", work=HOUR_S, speed=Linear(), max_gpus=2) for at in range(8)]
    heavy = replace(light[-1], id="heavy", weight=10.0)
    run = simulate([*light, heavy], Price(), owned(2))
    assert run.record.jobs["heavy"].finish_s == min(row.finish_s for row in run.record.jobs.values())
