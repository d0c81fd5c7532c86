"""A node is given back once, after whatever else was asked about it, and by the next controller if need be."""

from __future__ import annotations

import asyncio

import pytest

from sublet.domain import actions as order
from sublet.kernel.cluster import NodePhase
from sublet.runtime.clock import Clock
from sublet_lab.memory_cloud import MemoryCloud
from tests.rigs.story import OFFERS, Story, a_spec, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


class Slow(MemoryCloud):
    """It takes every order down, and answers when it may."""

    def __init__(self):
        super().__init__(OFFERS, Clock(speedup=60.0))
        self.said = []
        self.rents, self.releases = asyncio.Event(), asyncio.Event()
        self.rents.set()
        self.releases.set()

    async def rent(self, node_id, offer_id, token):
        self.said.append(f"rent {node_id}")
        await self.rents.wait()
        await super().rent(node_id, offer_id, token)
        self.said.append(f"rented {node_id}")

    async def release(self, node_id):
        self.said.append(f"release {node_id}")
        await self.releases.wait()
        await super().release(node_id)
        self.said.append(f"released {node_id}")


@pytest.fixture
def story(tmp_path):
    story = Story(tmp_path)
    story.cloud = Slow()
    return story


async def settled():
    for _ in range(20):
        await asyncio.sleep(0.01)


def test_whoever_gives_a_node_back_that_is_on_its_way_out_waits_and_asks_for_nothing(story):
    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 1)
            (node_id,), leases = story.cloud.nodes, api._controller.leases
            story.cloud.releases.clear()
            both = [asyncio.create_task(leases.release(node_id)) for _ in range(2)]
            await settled()
            assert story.cloud.said.count(f"release {node_id}") == 1
            assert not any(each.done() for each in both)
            story.cloud.releases.set()
            await asyncio.gather(*both)
            assert story.cloud.said.count(f"release {node_id}") == 1

    asyncio.run(live())


def test_a_node_is_not_given_back_before_its_rent_is_answered(story):
    """Or it would come when nobody waits for it any more."""

    async def live():
        async with story.controller() as api:
            leases, said = api._controller.leases, story.cloud.said
            story.cloud.rents.clear()
            renting = asyncio.create_task(leases.rent(order.RentNode("n7", "spot")))
            await settled()
            giving = asyncio.create_task(leases.release("n7"))
            await settled()
            assert said == ["rent n7"]
            story.cloud.rents.set()
            await asyncio.gather(renting, giving)
            assert said == ["rent n7", "rented n7", "release n7", "released n7"]
            assert story.cloud.nodes == {}

    asyncio.run(live())


def test_an_order_to_give_back_that_went_down_with_its_controller_is_given_by_the_next(story):
    """Its agent is silent: nobody but the cloud can end it before its lease."""

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 1)
            story.cloud.releases.clear()
            (node_id,) = story.cloud.nodes
            await api.cancel("j-1")
            nodes = api._controller.kernel.cluster.nodes
            await until(lambda: asyncio.sleep(0, nodes[node_id].phase is NodePhase.RELEASING), "it is kept")
        story.cloud.releases.set()
        story.cloud._greet = lambda node: None
        story.cloud.said.clear()
        async with story.controller() as api:
            await settled()
            assert story.cloud.said == [f"release {node_id}", f"released {node_id}"]

    asyncio.run(live())


def test_a_job_goes_on_elsewhere_when_a_node_is_given_back_under_it(story):
    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 1)
            (first,), record = story.cloud.nodes, api.record("j-1")
            await api._controller.leases.release(first)
            assert [worker.node_id for worker in record.group.workers.values() if worker.node_id == first] == []
            await phase(api, "j-1", "running")
            await until(lambda: asyncio.sleep(0, set(story.cloud.nodes) - {first}), "nothing else is rented")
            step = record.group.step
            await trained(api, "j-1", step + 1)

    asyncio.run(live())
