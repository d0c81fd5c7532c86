"""A job on nodes of both markets: when the cloud takes the one on spot, the one on demand goes on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.errors import InvalidValue
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet.runtime.clock import Clock
from sublet.runtime.controller.memory.records import pools_for
from sublet_lab.memory_cloud import MemoryCloud, Training, one_gpu_offer
from tests.rigs.story import Story, a_spec, trained, until

BOOT_S = 600.0  # a new node takes its time: survivors go on meanwhile
BOTH = tuple(one_gpu_offer(market, pool="both", boot_s=BOOT_S) for market in ("spot", "on-demand"))


@dataclass(frozen=True)
class OneOfEach:
    """Every job on two GPUs, one of them on demand."""

    def decide(self, snapshot):
        jobs = [*snapshot.active.values(), *snapshot.waiting.by(lambda state: state.seq)]
        shapes = {state.job.id: Shape("both", 2, steady=1) for state in jobs}
        return Plan(shapes=shapes, hold={"spot": len(jobs), "on-demand": len(jobs)})


def test_it_goes_on_on_demand_when_the_spot_node_is_taken(tmp_path):
    story = Story(tmp_path, limits={"spot": Limit(max_nodes=4), "on-demand": Limit(max_nodes=4)})
    story.cloud, story.policy = MemoryCloud(BOTH, Clock(speedup=60.0)), OneOfEach()
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=2))

            async def may_be_several():
                """The offers of its nodes, by node, once it trains on two."""
                view = await api.job("j-1")
                nodes = api._controller.kernel.cluster.nodes
                there = [node_id for node_id in view["node_ids"] if node_id in nodes]
                found = {node_id: nodes[node_id].offer.id for node_id in there}
                return found if view["workers"] == len(found) == 2 else None

            before = await until(may_be_several, "never on two nodes")
            assert sorted(before.values()) == ["on-demand", "spot"]
            await trained(api, "j-1", (await api.job("j-1"))["step"] + 5)
            (spot,) = (node_id for node_id, offer_id in before.items() if offer_id == "spot")
            story.cloud.take(spot)
            after = await until(wide_without(may_be_several, spot), "never on two nodes again")
            assert sorted(after.values()) == ["on-demand", "spot"]
            assert before.keys() - after.keys() == {spot}
            await trained(api, "j-1", (await api.job("j-1"))["step"] + 5)
            view = await api.job("j-1")
            assert (view["steps_lost"], view["failures_infra"]) == (0, 0)

    asyncio.run(live())
    log = story.log()
    assert any('"gpus":1,"steady":1' in line for line in log), "the survivor did not go on alone"
    check(replay(log))


@pytest.mark.usefixtures("virtual_time")
def test_a_job_with_a_core_goes_on_with_it_when_spot_is_gone_and_so_after_a_crash(tmp_path):
    """A policy that knows no markets gives it one on demand, and two that are cheaper while there are any."""
    story = Story(tmp_path, limits={"spot": Limit(max_nodes=4), "on-demand": Limit(max_nodes=1)})
    dear = one_gpu_offer("on-demand", 1.5, pool="both", boot_s=BOOT_S)
    story.cloud = MemoryCloud((BOTH[0], dear), Clock(speedup=60.0))
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)
    spec = a_spec(max_workers=3, min_on_demand=1)

    async def markets(api, workers):
        async def found():
            view = await api.job("j-1")
            nodes = api._controller.kernel.cluster.nodes
            there = [nodes[node_id].offer.id for node_id in view["node_ids"] if node_id in nodes]
            return sorted(there) if view["workers"] == len(there) == workers and view["phase"] == "running" else None

        return await until(found, f"never on {workers} nodes")

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(spec)
            assert await markets(api, 3) == ["on-demand", "spot", "spot"]
            story.cloud.sold_out.add("spot")
            for node_id in [node.id for node in story.cloud.nodes.values() if node.offer_id == "spot"]:
                story.cloud.take(node_id)
            assert await markets(api, 1) == ["on-demand"]
        story.cloud.sold_out.clear()
        async with story.controller() as api:
            assert api._controller.kernel.jobs["j-1"].job.min_on_demand == 1
            assert await markets(api, 3) == ["on-demand", "spot", "spot"]

    asyncio.run(live())
    check(replay(story.log()))


def wide_without(may_be_several, gone):
    async def found():
        nodes = await may_be_several()
        return nodes if nodes and gone not in nodes else None

    return found


def test_who_wants_one_market_is_not_sent_to_a_pool_of_both():
    alone = one_gpu_offer("on-demand", pool="alone")
    assert pools_for(a_spec(), BOTH) == ()
    assert pools_for(a_spec(market=Market.ON_DEMAND), [BOTH[0], alone]) == ("alone",)
    with pytest.raises(InvalidValue, match=r"resources\.spot"):
        pools_for(a_spec(market=Market.ON_DEMAND), BOTH)


def test_who_wants_a_core_is_not_sent_where_nothing_is_on_demand():
    spot, alone = one_gpu_offer("spot", pool="taken"), one_gpu_offer("on-demand", pool="alone")
    assert pools_for(a_spec(min_on_demand=1), BOTH) == ()
    assert pools_for(a_spec(min_on_demand=1), [*BOTH, spot]) == ("both",)
    assert pools_for(a_spec(min_on_demand=1), [spot, alone]) == ("alone",)
    with pytest.raises(InvalidValue, match=r"resources\.min_on_demand = 1 .*let nodes be rented on demand"):
        pools_for(a_spec(min_on_demand=1), [spot])
