"""The expected time of spot shapes against the simulator, what is learned of reclaims, and spares that are lent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Job
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.shape import Shape
from sublet.perf.preemption import Reclaims, believe_reclaims, shapes_kept, spot_speed
from sublet.perf.speedup import Linear, Table
from sublet.policies.fifo import Fifo
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer
from sublet_lab.studies.fleet.checks import reclaimed_cloud, rigid_and_elastic


@pytest.mark.parametrize("notice_s", [0.0, 120.0])
@pytest.mark.parametrize(("nodes", "per_h"), [(1, 1.0), (3, 0.5)])
def test_a_job_keeps_the_part_of_its_speed_that_the_formula_says(nodes, per_h, notice_s):
    """Some hundred reclaims: the mean is good to a few percent of what is lost, hence to half of one of the whole."""
    job = Job(
        id="j",
        submit_s=0.0,
        work=300 * 3600.0 * nodes,
        speed=Linear(),
        gpus=nodes,
        min_gpus=nodes,
        restart_s=100.0,
        checkpoint_every_s=300.0,
    )
    run = simulate([job], Fifo(), reclaimed_cloud(nodes, per_h, notice_s=notice_s, boot_s=90.0, seed=3))
    said = spot_speed(Reclaims(per_h=per_h, notice_s=notice_s, boot_s=90.0), job, [nodes])[0]
    assert job.work / nodes / run.metrics.mean_s == pytest.approx(said, rel=0.02)


@pytest.mark.parametrize(("nodes", "least", "boot_s"), [(3, 3, 90.0), (4, 1, 600.0)])
def test_a_job_that_survives_keeps_what_the_formula_says(nodes, least, boot_s):
    """Waiting it is exact; going on, the formula forgets that a second loss leaves fewer, which is 2 % of the whole."""
    facts = {"gpus": nodes, "min_gpus": least, "restart_s": 100.0, "checkpoint_every_s": 300.0, "survives": True}
    job = a_job("j", work=300 * 3600.0 * nodes, **facts)
    cloud = reclaimed_cloud(nodes, 0.5, notice_s=0.0, boot_s=boot_s, seed=3)
    cloud = replace(cloud, offers=[replace(offer, boot_s=boot_s) for offer in cloud.offers])
    kept = job.work / nodes / simulate([job], Fifo(), cloud).metrics.mean_s
    seen, shape = Reclaims(per_h=0.5, boot_s=boot_s), [Shape("p", nodes)]
    assert kept == pytest.approx(shapes_kept(seen, job, "T4", 1, shape)[0], rel=0.02)
    assert kept > 1.05 * shapes_kept(seen, replace(job, survives=False), "T4", 1, shape)[0]


class Watched:
    """`price`, and what it last believed of the reclaims of spot."""

    def __init__(self):
        self.per_h = []

    def decide(self, snapshot):
        self.per_h.append(
            believe_reclaims([state for state in snapshot.offers.values() if state.offer.hazard_per_h]).per_h
        )
        return Price().decide(snapshot)


def test_who_loses_nothing_for_a_day_comes_to_believe_that_little_is_lost():
    """The offer was said to lose half of its nodes per hour, by a record in which more was held."""
    cloud = Cloud(offers=[an_offer("o", gpus=1, hazard_per_h=0.5, notice_s=60.0)])
    workload = [a_job(f"j{at}", submit_s=3600.0 * at, work=7200.0, restart_s=30.0) for at in range(24)]
    watched = Watched()
    simulate(workload, watched, cloud)
    assert watched.per_h[0] == 0.5
    assert watched.per_h[-1] <= 0.1


def test_who_loses_far_more_than_was_said_leaves_spot_but_for_a_trial_now_and_then():
    """Spot costs 0.8 of on demand and is taken every five minutes, while it is said to be taken once an hour."""
    spot = an_offer("s", gpus=1, usd_per_h="0.8", hazard_per_h=1.0)
    steady = an_offer("d", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)
    falls = [change for at in range(1, 60) for change in ((300.0 * at, 0), (300.0 * at + 1.0, 8))]
    market = Changes(AvailabilityChanged(at_s, "s", nodes) for at_s, nodes in ((0.0, 8), *falls))
    facts = {"gpus": 1, "restart_s": 60.0, "checkpoint_every_s": 120.0}
    workload = [a_job(f"j{at}", submit_s=600.0 * at, work=1500.0, **facts) for at in range(24)]
    budget = Budget(average=Usd.from_usd_per_h("0.5"))  # so little that only money counts
    cloud = Cloud(offers=[spot, steady], physics=Physics(notice_s=0.0), market=market, budget=budget)
    run = simulate(workload, Price(), cloud, checked=True)
    assert run.unfinished == ()
    losses = [row.losses for row in run.record.jobs.values()]
    assert sum(losses[12:]) / 12 < 0.3 * sum(losses[:4]) / 4


# ---------------------------------------------------------------------- spares are lent


def idle_gpu_h(run):
    return run.metrics.gpu_hours - run.metrics.used_gpu_hours


@pytest.mark.parametrize(("stages", "pipelines", "size", "spare"), [(3, 1, 4, 1), (4, 2, 1, 2), (6, 1, 4, 2)])
def test_what_a_rigid_job_leaves_over_goes_to_the_other_and_not_a_gpu_is_idle(stages, pipelines, size, spare):
    """The rest of a multi-GPU node, and N - D x P of a pipeline job, on nodes that are held whatever happens."""
    nodes = (stages * pipelines + spare) // size
    assert nodes * size == stages * pipelines + spare
    offer = an_offer("o", gpus=size, gpu="V100", market=Market.ON_DEMAND)
    cloud = Cloud(offers=[offer], limits={"o": Limit(min_nodes=nodes, max_nodes=nodes)})
    rigid, elastic = rigid_and_elastic(stages, pipelines, spare)
    together = simulate([rigid, elastic], Price(), cloud, checked=True)
    alone = simulate([rigid], Price(), cloud, checked=True)
    hours = 4.0
    assert idle_gpu_h(alone) == pytest.approx(spare * hours, rel=0.01)
    assert idle_gpu_h(together) < 0.05 * idle_gpu_h(alone)
    assert together.record.jobs["rigid"].completion_s == alone.record.jobs["rigid"].completion_s


def test_when_a_node_is_lost_the_pipelines_that_no_longer_fit_are_lent_until_it_is_back():
    """Ten spot nodes hold 2 x 4 stages and 2 spares; when seven are left, one pipeline runs and three are lent."""
    rigid, elastic = rigid_and_elastic(4, 2, 3)
    elastic = replace(elastic, work=1e6)
    offer = an_offer("o", gpus=1, gpu="V100")
    market = Changes(AvailabilityChanged(at_s, "o", nodes) for at_s, nodes in ((0.0, 10), (3600.0, 7), (7200.0, 11)))
    held = []

    def watch(event, orders):
        held.extend((event.at_s, order.job_id, order.shape.gpus) for order in orders if hasattr(order, "placement"))

    cloud = Cloud(offers=[offer], market=market, physics=Physics(notice_s=0.0))
    simulate([rigid, elastic], Price(), cloud, checked=True, watch=watch)
    after = {job_id: gpus for at_s, job_id, gpus in held if at_s <= 3600.0}
    assert after == {"rigid": 4, "elastic": 3}
    back = {job_id: gpus for at_s, job_id, gpus in held if at_s <= 7200.0}
    assert back == {"rigid": 8, "elastic": 3}


def test_two_small_jobs_share_a_rented_node_instead_of_paying_for_two():
    offer = an_offer("o", gpus=4, gpu="V100", usd_per_h="4", market=Market.ON_DEMAND)
    speed = Table(rates={"V100": {2: 1.0}})
    workload = [a_job(name, work=3600.0, gpus=2, min_gpus=2, speed=speed) for name in "ab"]
    both = simulate(workload, Price(), Cloud(offers=[offer]), checked=True).metrics
    one = simulate(workload[:1], Price(), Cloud(offers=[offer]), checked=True).metrics
    assert both.usd == one.usd == pytest.approx(4.0, rel=1e-6)
