"""Each policy live is itself: with real jobs it takes the decision that sets it apart, and one that lacks it does not.

A run ends as soon as the decision was seen. What decides is which orders were given, never how long anything took.
"""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")

from sublet.demo.grid.run import GridJob
from sublet.domain.offer import Market
from sublet.domain.shape import Grid, Shape
from sublet.testing.values import an_offer
from tests.rigs.live_policy import Agents, Pace, Work, policy_at_work

SCALES, IDLES = Pace(floor_ms=10, sample_ms=20), Pace(floor_ms=300, sample_ms=1)  # two GPUs: 1.9 and 1.01 times one
ON_DEMAND = an_offer("on-demand", gpus=1, usd_per_h=0.5, market=Market.ON_DEMAND)


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    made = Agents(tmp_path_factory.mktemp("agents"))
    yield made
    asyncio.run(made.end())


def on_t4(gpus):
    return Shape(ON_DEMAND.pool, gpus)


def test_boa_narrows_jobs_to_what_an_average_pays_for(agents):
    """There are nodes for all at their most; two jobs at once are more than a few cents an hour pay for."""

    async def seen():
        async with policy_at_work(
            "boa", agents, [ON_DEMAND], beside="fifo", most_nodes=6, average_usd_per_h=0.03
        ) as live:
            jobs = [await live.submit(Work(name=name, pace=SCALES, most=3)) for name in ("first", "second")]
            await live.until(lambda: all(live.orders().values()), "both are started")
            assert live.widths() == {"first": [1], "second": [1]}
            assert [live.would(job_id) for job_id in jobs] == [{on_t4(3)}] * 2

    asyncio.run(seen())


def test_elastic_batch_takes_gpus_from_a_job_that_idles_on_them_for_one_that_scales(agents):
    """Alone the first has all three; of an equal split the second gets one."""

    async def seen():
        async with policy_at_work(
            "elastic-batch", agents, [ON_DEMAND], beside="equal", most_nodes=3, speedup=600.0
        ) as live:
            await live.submit(Work(name="idles", pace=IDLES, most=3))
            await live.until(lambda: live.widths()["idles"] == [3], "it has all")
            second = await live.submit(Work(name="scales", pace=SCALES, most=3))
            await live.until(lambda: live.widths()["scales"], "the other is started")
            assert live.widths() == {"idles": [3, 1], "scales": [2]}
            assert live.would(second) == {on_t4(1)}

    asyncio.run(seen())


def test_pollux_moves_gpus_to_the_job_whose_gradient_noise_makes_more_of_them(agents):
    """Their steps take as long; once both noises are measured, a larger batch on more GPUs is worth it to one alone."""

    async def seen():
        async with policy_at_work("pollux", agents, [ON_DEMAND], beside="equal", most_nodes=4) as live:
            pace, more = Pace(floor_ms=150, sample_ms=2), {"most": 3, "samples": 20_000, "largest": 512}
            quiet = await live.submit(Work(name="quiet", pace=pace, features=3, **more))
            noisy = await live.submit(Work(name="noisy", pace=pace, features=255, **more))
            await live.until(lambda: live.now() == {"quiet": 1, "noisy": 3}, "one has more")
            assert all(2 in widths for widths in live.widths().values())  # before that they had as much
            others = [*live.would_change(quiet), *live.would_change(noisy)]
            assert {shape.gpus for shape, _ in others} <= {2}

    asyncio.run(seen())


@pytest.mark.parametrize("policy", ["mip", "sia"])
def test_two_jobs_change_kinds_of_gpu_so_that_the_faster_kind_goes_to_the_one_that_gains(agents, policy):
    kinds = [ON_DEMAND, an_offer("fast", gpus=1, usd_per_h=3, gpu="V100", market=Market.ON_DEMAND)]
    fast = Shape(kinds[1].pool, 1)

    async def seen():
        async with policy_at_work(policy, agents, kinds, beside="fifo", most_nodes=1) as live:
            little = Pace(floor_ms=10, sample_ms=20, slower={"V100": 1.0, "T4": 1.2})
            much = Pace(floor_ms=10, sample_ms=20, slower={"V100": 1.0, "T4": 5.0})
            await live.submit(Work(name="little", pace=little))
            await live.until(lambda: live.last("little") == fast, "it has the fast one")
            gains = await live.submit(Work(name="much", pace=much))
            await live.until(lambda: live.last("much") == fast, "the other has it")
            assert live.orders()["much"] == [fast]
            assert live.orders()["little"][-1] == on_t4(1)
            assert live.would(gains) == {on_t4(1)}

    asyncio.run(seen())


def test_price_buys_time_as_the_budget_allows_and_more_of_it_once_that_is_raised(agents):
    async def seen():
        async with policy_at_work(
            "price", agents, [ON_DEMAND], beside="fifo", most_nodes=6, average_usd_per_h=0.03
        ) as live:
            jobs = [await live.submit(Work(name=name, pace=SCALES, most=3)) for name in ("first", "second")]
            await live.until(lambda: all(live.orders().values()), "both are started")
            assert live.widths() == {"first": [1], "second": [1]}
            assert [live.would(job_id) for job_id in jobs] == [{on_t4(3)}] * 2
            await live.api.set_budget(average_usd_per_h=50.0)
            await live.until(lambda: live.now() == {"first": 3, "second": 3}, "both are widened")

    asyncio.run(seen())


def test_regions_waits_for_spot_while_the_deadline_allows_and_goes_on_demand_when_not(agents):
    """There is no spot. Five hours of work: one job has to be done in five and a half, the other in ten days."""
    spot = an_offer("spot", gpus=1, usd_per_h=0.15)

    async def seen():
        async with policy_at_work("regions", agents, [spot, ON_DEMAND], beside="fifo", most_nodes=2) as live:
            live.cloud.supply("spot", 0)
            facts = {"samples_per_s": 50.0, "restart_s": 0.1}
            patient = await live.submit(Work(name="patient", pace=SCALES, facts={**facts, "deadline_s": 1e6}))
            await live.submit(Work(name="urgent", pace=SCALES, facts={**facts, "deadline_s": 20_000.0}))
            await live.until(lambda: live.last("urgent") == on_t4(1), "it goes on demand")
            assert live.orders() == {"patient": [], "urgent": [on_t4(1)]}
            assert live.would(patient) == {on_t4(1)}
            live.cloud.supply("spot", 1)
            await live.until(lambda: live.last("patient") == Shape(spot.pool, 1), "the other has spot")
            assert live.orders()["patient"] == [Shape(spot.pool, 1)]

    asyncio.run(seen())


@pytest.mark.parametrize(("speedup", "left"), [(20_000.0, False), (20.0, True)])
def test_liveput_leaves_a_grid_for_a_faster_one_only_where_the_change_pays_before_the_next(agents, speedup, left):
    """Room comes for a second copy. A fraction of a second of pause is hours of the cloud, or some of its seconds."""
    spot = an_offer("spot", gpus=1, usd_per_h=0.15)

    async def seen():
        async with policy_at_work("liveput", agents, [spot], beside="fastest", most_nodes=4, speedup=speedup) as live:
            live.cloud.supply("spot", 2)
            job_id = await live.submit(GridJob(samples=4096, stages=2, least=2, most=4))
            await live.until(lambda: live.trains(job_id), "it trains")
            assert {shape.grid for shape in live.orders()["gpt"]} == {Grid(1, 2)}
            live.cloud.supply("spot", 4)
            await live.until(lambda: live.would_change(job_id), "the fastest is another one")
            other, own = live.would_change(job_id)[0]
            assert other.grid == Grid(2, 2)
            assert (own is not None and own.grid == Grid(2, 2)) is left

    asyncio.run(seen())
