"""Spot and on demand in one pool: the shape that `price` chooses, beside all that there are."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.shape import Grid, Shape, packed
from sublet.perf.preemption import shapes_kept
from sublet.perf.speedup import Amdahl, ConstantRate, PowerLaw
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import sized

MARKETS, WIDE = sized(80, 500), sized(60, 1000)


@dataclass(frozen=True)
class Cut(ConstantRate):
    """A speed that leaves grid and batch to the plan: parts help up to a point, and so do samples for each GPU."""

    exponent: float
    deep: tuple[int, ...]
    batches: tuple[int, ...]
    shape: Shape | None = None

    def bound_to(self, shape):
        return replace(self, shape=shape)

    def ways(self, gpus):
        grids = [Grid(copies, parts) for parts in self.deep for copies in range(1, gpus // parts + 1)]
        return list(itertools.product(grids, self.batches))

    def rate(self, gpu, spread, done):
        del gpu, spread, done
        if self.shape is None or self.shape.grid is None or self.shape.batch is None:
            return 0.0
        grid, each = self.shape.grid, self.shape.batch / 4
        return (grid.copies * grid.parts**0.9) ** self.exponent / (1.0 + 0.1 * abs(math.log2(each / grid.copies)))


def random_market(seed, wide=False):
    """One kind, spot and on demand, nodes of one or two GPUs, and one job: on few nodes, or on up to five to eight."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 1, 2]))
    spot = an_offer(
        "s",
        gpus=size,
        pool="p",
        usd_per_h=size * 1.0,
        hazard_per_h=float(rng.choice([0.0, 0.1, 1.0])),
        reclaim_share=float(rng.choice([0.0, 0.3])),
        notice_s=float(rng.choice([0.0, 120.0])),
        boot_s=float(rng.choice([0.0, 120.0])),
    )
    ratio = float(rng.choice([0.8, 1.3, 3.3, 5.0]))
    steady = an_offer("d", gpus=size, pool="p", usd_per_h=size * ratio, market=Market.ON_DEMAND, boot_s=60.0)
    speed = (
        Cut(float(rng.uniform(0.5, 1.0)), (1, 2) if rng.random() < 0.5 else (2, 3), (4, 8))
        if rng.random() < 0.4
        else [Amdahl(parallel=0.95), PowerLaw(exponent=0.8)][int(rng.integers(2))]
    )
    nodes = (5, 9) if wide else (2, 4) if size == 2 else (3, 5)
    stock = 10 if wide else 6
    job = a_job(
        work=float(rng.uniform(1.0, 50.0)) * 3600,
        speed=speed,
        gpus=3,
        min_gpus=int(rng.integers(1, 4)),
        max_gpus=size * int(rng.integers(*nodes)),
        restart_s=float(rng.choice([30.0, 600.0])),
        checkpoint_every_s=1800.0,
        survives=bool(rng.random() < 0.5),
    )
    driver = Driver([spot, steady], limits={"d": Limit(max_nodes=int(rng.integers(0, stock)))})
    driver.tell(AvailabilityChanged(0.0, "s", int(rng.integers(0, stock))))
    driver.submit(job)
    return driver, job, float(rng.choice([0.1, 1.0, 5.0, 20.0, 100.0]))


def every_shape(job):
    ways = {
        gpus: job.speed.ways(gpus) if isinstance(job.speed, Cut) else [(None, None)]
        for gpus in range(job.min_gpus, job.max_gpus + 1)
    }
    return [Shape("p", gpus, steady, *way) for gpus in ways for steady in range(gpus + 1) for way in ways[gpus]]


def least_cost(snapshot, job, value):
    """Of all (gpus, steady, grid, batch) that can be had, added up one by one: what `price` should find."""
    (site,) = Terms.from_snapshot(snapshot).sites
    spot, steady = snapshot.offers["s"], snapshot.offers["d"]
    every, found = every_shape(job), {}
    kept_C = shapes_kept(site.reclaims, job, "T4", site.gpus_per_node, every).tolist()
    for shape, kept in zip(every, kept_C, strict=True):
        nodes = [math.ceil(gpus / site.gpus_per_node) for gpus in (shape.gpus - shape.steady, shape.steady)]
        rate = kept * job.speed_on(shape).rate("T4", packed(shape.gpus, site.gpus_per_node), 0.0)
        if nodes[0] <= spot.most and nodes[1] <= steady.most and rate > 0:
            boot_s = max(each.offer.boot_s for each, many in zip((spot, steady), nodes, strict=True) if many)
            hours = (boot_s + job.restart_s + job.work / rate) / 3600
            rent = nodes[0] * spot.price.usd_per_h + nodes[1] * steady.price.usd_per_h
            found[shape] = (value + rent) * hours
    return found


def chosen(seed, *, wide=False):
    """The shape, and how much dearer it is than the best of all, as a part of that; None where nothing can be had."""
    driver, job, value = random_market(seed, wide)
    snapshot = driver.kernel.snapshot()
    costs, shape = least_cost(snapshot, job, value), Price(hour_usd=value).decide(snapshot).shapes.get(job.id)
    if shape is None:
        assert not costs
        return None
    return shape, costs[shape] / min(costs.values()) - 1.0


def test_the_shape_that_is_chosen_is_the_best_of_all_that_there_are():
    """Up to four nodes are split between the markets in every way."""
    mixed = 0
    for seed in range(MARKETS):
        if (found := chosen(seed)) is not None:
            shape, dearer = found
            assert dearer == pytest.approx(0.0, abs=1e-9), (seed, shape)
            mixed += 0 < shape.steady < shape.gpus
    assert mixed > MARKETS // 50  # else nothing was tried


def test_where_not_every_split_is_on_the_menu_the_shape_is_nearly_always_the_best_and_else_near_it():
    found = [each for seed in range(WIDE) if (each := chosen(seed, wide=True)) is not None]
    assert sum(dearer < 1e-9 for _, dearer in found) >= 0.97 * len(found)
    assert max(dearer for _, dearer in found) < 0.05
    assert sum(0 < shape.steady < shape.gpus for shape, _ in found) > WIDE // 50


# ---------------------------------------------------------------------- one job, several jobs

SPOT = an_offer("s", gpus=1, usd_per_h="1", pool="p", hazard_per_h=0.05, boot_s=60.0)
STEADY = an_offer("d", gpus=1, usd_per_h="3.3", pool="p", market=Market.ON_DEMAND, boot_s=60.0)
LONG = {"work": 216_000.0, "speed": Amdahl(parallel=0.98), "restart_s": 60.0, "checkpoint_every_s": 1800.0}


def settled(value, *jobs, spot=6, **facts):
    driver = Driver([SPOT, STEADY], **facts)
    driver.tell(AvailabilityChanged(0.0, "s", spot))
    driver.submit(*(jobs or [a_job(gpus=1, max_gpus=32, survives=True, **LONG)]))
    driver.settle(Price(hour_usd=value))
    return driver


def held(driver):
    return tuple(driver.kernel.snapshot().offers[offer_id].held for offer_id in "sd")


def test_a_job_mixes_where_spot_is_short_and_not_outside_of_the_band():
    """The worth of an hour in hours of a spot GPU; six of these can be had."""
    shapes = {value: settled(value).kernel.jobs["a"].shape for value in (0.5, 3.0, 30.0, 100.0, 1e5)}
    assert (shapes[0.5].gpus < 6, shapes[0.5].steady) == (True, 0)  # spot is not short of what it buys
    assert shapes[3.0] == Shape("p", 6)
    for value in (30.0, 100.0):
        assert shapes[value].gpus - shapes[value].steady == 6
        assert shapes[value].steady > 0
    assert shapes[1e5].steady == shapes[1e5].gpus == 32  # no time for reclaims


def test_nodes_of_each_market_are_held_as_the_shape_says_and_given_up_when_spot_is_back():
    driver = settled(30.0)
    shape = driver.kernel.jobs["a"].shape
    assert held(driver) == (6, shape.steady)
    driver.tell(AvailabilityChanged(600.0, "s", 32))
    driver.settle(Price(hour_usd=30.0))
    wide = driver.kernel.jobs["a"].shape
    assert (wide.steady, held(driver)) == (0, (wide.gpus, 0))
    assert wide.gpus > 6


def test_what_is_short_of_spot_for_several_jobs_has_a_surcharge_of_its_own_and_nobody_waits():
    jobs = [a_job(f"j{n}", gpus=1, max_gpus=8, survives=True, **LONG) for n in range(4)]
    driver = Driver([SPOT, STEADY], limits={"d": Limit(max_nodes=6)}, budget=Budget(average=Usd.from_usd_per_h("20")))
    driver.tell(AvailabilityChanged(0.0, "s", 5))
    driver.submit(*jobs)
    driver.settle(Price())
    shapes = [driver.kernel.jobs[job.id].shape for job in jobs]
    assert None not in shapes
    assert sum(shape.gpus - shape.steady for shape in shapes) <= 5
    assert sum(shape.steady for shape in shapes) <= 6
    assert held(driver) == (
        sum(shape.gpus - shape.steady for shape in shapes),
        sum(shape.steady for shape in shapes),
    )


def test_a_quota_over_both_markets_is_kept():
    driver = settled(1000.0, quotas={"p": 10})
    shape = driver.kernel.jobs["a"].shape
    assert (shape.gpus, shape.gpus - shape.steady) == (10, 6)


def test_two_jobs_share_a_quota_over_both_markets():
    jobs = [a_job(name, gpus=1, max_gpus=8, survives=True, **LONG) for name in "ab"]
    driver = settled(100.0, *jobs, spot=4, quotas={"p": 10})
    shapes = [driver.kernel.jobs[name].shape for name in "ab"]
    assert None not in shapes
    assert 8 <= sum(shape.gpus for shape in shapes) <= 10
