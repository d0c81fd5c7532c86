"""Each policy live is itself: with real jobs it takes the decision that sets it apart, and one that lacks it does not.

A run ends as soon as the decision was seen. What decides is which orders were given, never how long anything took.
"""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("torch")

from sublet.domain.offer import Market
from sublet.domain.shape import Shape
from sublet.testing.values import an_offer
from tests.rigs.live_policy import Pace, Work, story

SCALES, IDLES = Pace(floor_ms=10, sample_ms=20), Pace(floor_ms=300, sample_ms=1)  # two GPUs: 1.9 and 1.01 times one
ON_DEMAND = an_offer("on-demand", gpus=1, usd_per_h=0.5, market=Market.ON_DEMAND)


def on_t4(gpus):
    return Shape(ON_DEMAND.pool, gpus)


def test_boa_narrows_jobs_to_what_an_average_pays_for():
    """There are nodes for all at their most; two jobs at once are more than a few cents an hour pay for."""

    async def seen():
        async with story("boa", [ON_DEMAND], beside="fifo", most_nodes=6, average_usd_per_h=0.03) as live:
            jobs = [await live.submit(Work(name=name, pace=SCALES, most=3)) for name in ("first", "second")]
            await live.until(lambda: all(live.orders().values()), "both are started")
            assert live.widths() == {"first": [1], "second": [1]}
            assert {other.gpus for job_id in jobs for other in live.others(job_id, on_t4(1))} == {3}

    asyncio.run(seen())


@pytest.mark.parametrize("policy", ["elastic-batch", "pollux"])
def test_gpus_go_from_a_job_that_idles_on_them_to_one_that_scales(policy):
    """Alone the first has all three; of an equal split the second gets one."""

    async def seen():
        async with story(policy, [ON_DEMAND], beside="equal", most_nodes=3, speedup=600.0) as live:
            await live.submit(Work(name="idles", pace=IDLES, most=3))
            await live.until(lambda: live.widths()["idles"] == [3], "it has all")
            second = await live.submit(Work(name="scales", pace=SCALES, most=3))
            await live.until(lambda: live.widths()["scales"], "the other is started")
            assert live.widths() == {"idles": [3, 1], "scales": [2]}
            assert set(live.others(second, on_t4(2))) == {on_t4(1)}

    asyncio.run(seen())


@pytest.mark.parametrize("policy", ["mip", "sia"])
def test_two_jobs_change_kinds_of_gpu_so_that_the_faster_kind_goes_to_the_one_that_gains(policy):
    kinds = [ON_DEMAND, an_offer("fast", gpus=1, usd_per_h=3, gpu="V100", market=Market.ON_DEMAND)]
    fast = Shape(kinds[1].pool, 1)

    async def seen():
        async with story(policy, kinds, beside="fifo", most_nodes=1) as live:
            little = Pace(floor_ms=10, sample_ms=20, slower={"V100": 1.0, "T4": 1.2})
            much = Pace(floor_ms=10, sample_ms=20, slower={"V100": 1.0, "T4": 5.0})
            await live.submit(Work(name="little", pace=little))
            await live.until(lambda: live.last("little") == fast, "it has the fast one")
            gains = await live.submit(Work(name="much", pace=much))
            await live.until(lambda: live.last("much") == fast, "the other has it")
            assert live.orders()["much"] == [fast]
            assert live.orders()["little"][-1] == on_t4(1)
            assert set(live.others(gains, fast)) == {on_t4(1)}

    asyncio.run(seen())
