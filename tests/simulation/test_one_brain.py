"""Every question that had a brain of its own is planned by a policy of the kernel and driven by the simulator.

A row is a question; what it found is in the shapes that were ordered. `LIVE` says which of them run live today, and why
the others do not: it is for people, and not tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sublet.domain.actions import RentNode, ResizeJob, StartJob
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.plan import Policy
from sublet.perf.gridded import LivePauses
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl
from sublet.perf.spot_models import gridded_job, measured_job
from sublet.perf.steptime import RingStep
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.elastic_batch.scaling import BatchScaling, doubling
from sublet.policies.liveput.policy import Liveput
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import a_job, an_offer

LIVE = {
    "width, kind and market of many jobs": "yes",
    "copies x stages of one job on spot": "no: no trainer of ours is cut into stages",
    "machines for one job, some of them on demand": "yes: the kernel places by market in both worlds",
    "batch of many jobs": "yes: the batch of a shape goes to the workers with the order; a live job has no model of it",
    "phases of a job": "no: what a live job has learned of its speed is one phase",
}
HOUR_S = 3600.0


@dataclass(frozen=True)
class Row:
    policy: Policy
    jobs: list
    cloud: Cloud
    found: Callable[[list, set], bool]  # among the shapes that were ordered, and the offers of which nodes were
    until_s: float = math.inf


def spot_and_on_demand(pool=""):
    facts = {"gpus": 1, "gpu": "V100", "pool": pool}
    return [
        an_offer("spot", usd_per_h="1", hazard_per_h=0.2, **facts),
        an_offer("on-demand", usd_per_h="3", market=Market.ON_DEMAND, **facts),
    ]


def scarce(nodes):
    return lambda: [AvailabilityChanged(0.0, "spot", nodes)]


def row_of(question):
    match question:
        case "width, kind and market of many jobs":
            jobs = [
                a_job(
                    f"j{at}",
                    work=4 * HOUR_S,
                    speed=Amdahl(parallel=0.95),
                    max_gpus=8,
                    restart_s=30.0,
                    checkpoint_every_s=300.0,
                )
                for at in range(6)
            ]
            cloud = Cloud(offers=spot_and_on_demand(), market=scarce(4))
            return Row(Price(hour_usd=5.0), jobs, cloud, lambda shapes, _: len({(s.pool, s.gpus) for s in shapes}) > 1)
        case "copies x stages of one job on spot":
            profile = measured_job("gpt-1.5b")
            job = gridded_job(profile, LivePauses(profile), id="big", submit_s=0.0, work=math.inf, max_gpus=32)
            changes = [(0.0, 24), (600.0, 17), (1200.0, 30)]
            market = [AvailabilityChanged(at_s, "spot", nodes) for at_s, nodes in changes]
            cloud = Cloud(offers=spot_and_on_demand()[:1], market=lambda: market)
            return Row(Liveput(), [job], cloud, lambda shapes, _: len({s.grid for s in shapes}) > 1, until_s=2400.0)
        case "machines for one job, some of them on demand":
            job = a_job(
                "one",
                work=40 * HOUR_S,
                speed=Amdahl(parallel=0.98),
                max_gpus=16,
                restart_s=30.0,
                checkpoint_every_s=300.0,
            )
            cloud = Cloud(offers=spot_and_on_demand(pool="both"), market=scarce(5))
            return Row(Price(hour_usd=60.0), [job], cloud, lambda _, rented: len(rented) > 1)
        case "batch of many jobs":
            ring = RingStep(
                alpha_s=3e-3, beta_s=2e-4, gradient_bytes=244e6, intra_bytes_per_s=1e10, inter_bytes_per_s=1e10
            )
            speed = BatchScaling(step={"V100": ring}, batches=doubling(32, 2048), max_local={"V100": 256})
            jobs = [a_job(f"j{at}", gpus=1, max_gpus=8, work=1e7 * (at + 1), speed=speed) for at in range(3)]
            offer = an_offer("o", gpu="V100", gpus=8)
            cloud = Cloud(offers=[offer], limits={"o": Limit(min_nodes=1, max_nodes=1)})
            return Row(ElasticBatch(), jobs, cloud, lambda shapes, _: len({s.batch for s in shapes if s.batch}) > 1)
        case _:
            work = 2 * HOUR_S
            speed = Phased(ends=(work / 2, work), rates=lambda gpu, spread: (sum(spread) ** 0.1, float(sum(spread))))
            job = a_job("late", work=work, speed=speed, max_gpus=8)
            cloud = Cloud(offers=spot_and_on_demand()[1:])
            return Row(Price(hour_usd=8.0), [job], cloud, lambda shapes, _: len({s.gpus for s in shapes}) > 1)


@pytest.mark.parametrize("question", LIVE)
def test_each_question_is_answered_by_a_policy_of_the_kernel_in_the_simulator(question):
    row, shapes, rented = row_of(question), [], set()

    def watch(event, actions):
        shapes.extend(action.shape for action in actions if isinstance(action, StartJob | ResizeJob))
        rented.update(action.offer_id for action in actions if isinstance(action, RentNode))

    run = simulate(row.jobs, row.policy, row.cloud, until_s=row.until_s, watch=watch, checked=True)
    assert row.found(shapes, rented), (shapes, rented)
    assert run.metrics.finished == (len(row.jobs) if row.until_s == math.inf else 0)


def test_jobs_in_grids_and_of_a_fixed_width_share_one_market_and_one_budget():
    from sublet.sim.workloads.csvformat import csv_from_workload, workload_from_bytes

    text = b"job_id,submit_s,duration_s,gpus,model,samples\nbig,0,,8,gpt-1.5b,60000\nsmall,60,1800,2,,\n"
    workload = workload_from_bytes(text, "mixed")
    offer = an_offer("spot", gpus=1)
    market = [AvailabilityChanged(at_s, "spot", nodes) for at_s, nodes in ((0.0, 20), (900.0, 12), (1800.0, 24))]
    cloud = Cloud(offers=[offer], market=lambda: market, budget=Budget(burn=Usd.from_usd_per_h("18")))
    runs = {}
    for name, policy in {"liveput": Liveput(), "price": Price(hour_usd=50.0)}.items():
        runs[name] = simulate(workload.jobs, policy, cloud, checked=True)
        assert runs[name].metrics.finished == 2
        assert max(gpus for _, gpus in runs[name].record.held) <= 18
    assert runs["liveput"].record.jobs["big"].done == 60000
    again = workload_from_bytes(csv_from_workload(workload).encode(), "mixed")
    assert [(job.id, job.work, job.min_gpus, job.max_gpus) for job in again.jobs] == [
        (job.id, job.work, job.min_gpus, job.max_gpus) for job in workload.jobs
    ]
