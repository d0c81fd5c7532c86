"""Grids and steady parts on pools of both markets: no law breaks, and a whole copy on demand never goes to storage."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from zlib import crc32

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.events import AvailabilityChanged, ProgressReported
from sublet.domain.offer import Market
from sublet.domain.plan import Plan
from sublet.domain.seats import has_all_parts, seats
from sublet.domain.shape import Grid, Shape
from sublet.perf.speedup import ConstantRate
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.solve.expectation import Loss, keeps
from sublet.testing.strategies import jobs, mixed_clouds
from sublet.testing.values import Changes, a_job, an_offer
from tests.rigs.sizes import examples

SEEDS = 1000
Z_99 = 2.576


@dataclass(frozen=True)
class InParts(ConstantRate):
    """Trains in any grid, by the GPUs that are in it."""

    used: int | None = None

    def bound_to(self, shape):
        return InParts(shape.gpus if shape.grid is None else shape.grid.gpus)

    def rate(self, gpu, spread, done):
        return float(self.used or sum(spread))


@dataclass(frozen=True)
class Anyhow:
    """Widths, steady parts and grids by the rng, within what may be had, and nodes for all of them."""

    seed: int

    def decide(self, snapshot):
        (pool,) = snapshot.pools.values()
        size = pool.gpus_per_node
        most = {}
        for market, offer_ids in pool.markets.items():
            gpus = sum(snapshot.offers[offer_id].most for offer_id in offer_ids) * size
            most[market] = min(gpus, pool.max_of.get(market, math.inf), 64)
        quota = math.inf if pool.max_gpus is None else pool.max_gpus - size  # both markets are rounded up to nodes
        room, sure = min(sum(most.values()), quota) // size * size, most[Market.ON_DEMAND]
        shapes, promised, steady = {}, 0, 0
        for state in sorted([*snapshot.active.values(), *snapshot.waiting.by(lambda s: s.seq)], key=lambda s: s.seq):
            job, rng = state.job, crc32(f"{self.seed} {state.job.id}".encode())
            gpus = int(min(room - promised, job.min_gpus + rng % (job.max_gpus - job.min_gpus + 1)))
            if gpus < job.min_gpus:
                shapes[job.id] = None
                continue
            of_these = int(min(rng // 7 % (gpus + 1), sure - steady))
            parts = 1 + rng // 11 % gpus
            grid = Grid(max(1, gpus // parts - rng // 13 % 2), parts) if rng // 17 % 3 else None
            shapes[job.id] = Shape(pool.name, gpus, steady=of_these, grid=grid)
            promised, steady = promised + gpus, steady + of_these
        spot = min(most[Market.SPOT] // size, -(-(promised - steady) // size))
        on_demand = max(-(-steady // size), -(-(promised - spot * size) // size))
        hold = {pool.markets[Market.SPOT][0]: int(spot), pool.markets[Market.ON_DEMAND][0]: int(on_demand)}
        return Plan(shapes=shapes, hold=hold)


@settings(max_examples=examples(120))
@given(jobs(most=4), mixed_clouds(), st.integers(0, 999))
def test_no_law_breaks_with_grids_on_both_markets_and_every_job_finishes(workload, cloud, seed):
    workload = [replace(job, speed=InParts(), survives=seed % 2 == 0) for job in workload]
    run = simulate(workload, Anyhow(seed), cloud, seed=seed, checked=True)
    assert run.unfinished == ()


# ---------------------------------------------------------------------- a whole copy on demand


def lost_everywhere(grid, spares, steady, lost, rng):
    """Whether a part has no holder left after so many random losses among the GPUs on spot."""
    nodes = [f"n{at}" for at in rng.permutation(grid.gpus + spares)]
    seated = seats(tuple((node, 1) for node in nodes), grid, set(nodes[:steady]))
    gone = rng.choice(nodes[steady:], size=lost, replace=False)
    return not has_all_parts({node: places for node, places in seated.items() if node not in gone}, grid)


def test_a_whole_copy_on_demand_never_goes_to_storage_and_without_it_a_job_does_as_often_as_reckoned():
    rng = np.random.default_rng(16)
    for grid, spares, lost in ((Grid(2, 4), 1, 3), (Grid(4, 4), 0, 8), (Grid(3, 2), 2, 4), (Grid(2, 8), 3, 5)):
        assert not any(lost_everywhere(grid, spares, grid.parts, lost, rng) for _ in range(SEEDS))
        often = sum(lost_everywhere(grid, spares, 0, lost, rng) for _ in range(SEEDS)) / SEEDS
        reach = Loss(instances=grid.gpus + spares, lost=lost)
        chance = 1.0 - float(keeps([grid.copies], [grid.parts], loss=reach)[0, 0])
        assert abs(often - chance) <= Z_99 * math.sqrt(chance * (1.0 - chance) / SEEDS)
        assert often > 0.05


@dataclass(frozen=True)
class Core:
    """`steady` GPUs on demand under as many copies as spot has room for."""

    steady: int
    parts: int = 3

    def decide(self, snapshot):
        (state,) = [*snapshot.active.values(), *snapshot.waiting.by(lambda s: s.seq)] or [None]
        if state is None:
            return Plan(hold={"s": 0, "d": 0})
        spot = int(min(snapshot.offers["s"].most, 9))
        copies = (self.steady + spot) // self.parts
        gpus = self.steady + spot
        shape = Shape("p", gpus, steady=self.steady, grid=Grid(copies, self.parts)) if copies else None
        return Plan(shapes={"a": shape}, hold={"s": spot, "d": self.steady})


def steps_back(steady, seed):
    """How often a job is told to be at less than it was."""
    rng = np.random.default_rng(seed)
    changes = [AvailabilityChanged(60.0 * at, "s", int(rng.integers(0, 10))) for at in range(1, 60)]
    offers = [an_offer("s", gpus=1, pool="p"), an_offer("d", gpus=1, pool="p", market=Market.ON_DEMAND)]
    cloud = Cloud(offers=offers, physics=Physics(notice_s=0.0), market=Changes(tuple(changes)))
    heard = []

    def watch(event, orders):
        if isinstance(event, ProgressReported):
            heard.append(event.done)

    job = a_job("a", gpus=3, min_gpus=1, max_gpus=99, work=1e9, speed=InParts(), survives=True)
    simulate([job], Core(steady), cloud, seed=seed, checked=True, watch=watch, until_s=3600.0)
    assert len(heard) > 10
    return sum(later < before for before, later in pairwise(heard))


def test_in_a_life_of_losses_a_job_with_a_whole_copy_on_demand_never_steps_back():
    assert [steps_back(3, seed) for seed in range(3)] == [0, 0, 0]
    assert min(steps_back(1, seed) for seed in range(2)) > 0  # one part of three is not a copy
