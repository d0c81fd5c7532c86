"""Every question that had a brain of its own is planned by a policy of the kernel and driven by the simulator.

A row is a question; what it found is in the shapes that were ordered, and nobody finds it who asks another question.
`LIVE` says which of them run live today, and why
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
from sublet.perf.parcae import gridded_job, measured_job
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl
from sublet.perf.steptime import RingStep
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.elastic_batch.scaling import BatchScaling, doubling
from sublet.policies.equal import Equal
from sublet.policies.fastest import Fastest
from sublet.policies.fifo import Fifo
from sublet.policies.liveput.policy import Liveput
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup

LIVE = {
    "width, kind and market of many jobs": "yes",
    "copies x stages of one job on spot": "yes, as far as the controller: workers are told their places in a grid",
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

            def on_both_in_widths_of_their_own(shapes, rented):
                """Neither what a job asked for nor all that it may have."""
                widths = {shape.gpus for shape in shapes}
                return len(rented) == 2 and len(widths) > 1 and all(1 < width < 8 for width in widths)

            return Row(Price(hour_usd=5.0), jobs, cloud, on_both_in_widths_of_their_own)
        case "copies x stages of one job on spot":
            profile = measured_job("gpt-1.5b")
            job = gridded_job(profile, LivePauses(profile), id="big", submit_s=0.0, work=math.inf, max_gpus=32)
            changes = [(0.0, 24), (600.0, 26), (660.0, 24), (720.0, 26), (1200.0, 30)]
            market = [AvailabilityChanged(at_s, "spot", nodes) for at_s, nodes in changes]
            cloud = Cloud(offers=spot_and_on_demand()[:1], market=lambda: market)

            def several_and_not_always_the_fastest(shapes, _):
                """What a change costs was weighed: it is not made for the little that the last four GPUs bring."""
                grids = {shape.grid for shape in shapes} - {None}
                return len(grids) > 1 and any(
                    shape.grid != job.speed.grid(profile.fastest(shape.gpus)) for shape in shapes
                )

            return Row(Liveput(), [job], cloud, several_and_not_always_the_fastest, until_s=2400.0)
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
            return Row(
                Price(hour_usd=60.0),
                [job],
                cloud,
                lambda shapes, rented: len(rented) > 1 and any(0 < shape.steady < shape.gpus for shape in shapes),
            )
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


def answered(row, policy):
    """Whether this policy found it; all jobs that have an end come to it."""
    shapes, rented = [], set()

    def watch(event, actions):
        shapes.extend(action.shape for action in actions if isinstance(action, StartJob | ResizeJob))
        rented.update(action.offer_id for action in actions if isinstance(action, RentNode))

    run = simulate(row.jobs, policy, row.cloud, until_s=row.until_s, watch=watch, checked=True)
    assert run.metrics.finished == (len(row.jobs) if row.until_s == math.inf else 0)
    return row.found(shapes, rented)


@pytest.mark.parametrize("question", LIVE)
def test_each_question_is_answered_by_a_policy_of_the_kernel_in_the_simulator(question):
    row = row_of(question)
    assert answered(row, row.policy)


@pytest.mark.parametrize("question", LIVE)
def test_no_question_is_answered_by_who_does_not_ask_it(question):
    row = row_of(question)
    assert [type(other) for other in (Fifo(), Fastest(), Equal(), MaxSpeedup()) if answered(row, other)] == []


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
