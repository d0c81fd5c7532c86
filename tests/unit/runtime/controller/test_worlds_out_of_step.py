"""The kernel, the groups and the cloud hear of a node's end at different times: nobody is sent to one that is gone."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from sublet import plugins
from sublet.domain import events as news
from sublet.domain.budget import Limit
from sublet.errors import NoAccess, NoAnswer
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet.runtime.clock import Clock
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.nodes import unknown_instances
from sublet.runtime.controller.nodes.heartbeats import Heartbeats
from sublet_lab.memory_cloud import MemoryCloud, Training, api_over
from tests.rigs.story import OFFERS, Story, a_spec, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


class Unruly(MemoryCloud):
    """A cloud that can be slow, silent and unclear."""

    def __init__(self):
        super().__init__(OFFERS, Clock(speedup=60.0))
        self.asked = []  # every call to rent
        self.answers = asyncio.Event()  # releases are answered
        self.answers.set()
        self.unclear = 0  # calls to rent that are not answered clearly, though the node comes
        self.lists_to_fail = self.opens_to_fail = 0
        self.trouble = OSError("503 Service Unavailable")

    async def rent(self, node_id, offer_id, token):
        self.asked.append(node_id)
        await super().rent(node_id, offer_id, token)
        if self.unclear:
            self.unclear -= 1
            raise self.trouble

    async def release(self, node_id):
        await self.answers.wait()
        await super().release(node_id)

    async def list(self):
        if self.lists_to_fail:
            self.lists_to_fail -= 1
            raise self.trouble
        return await super().list()

    async def _open_market(self, tell):
        if self.opens_to_fail:
            self.opens_to_fail -= 1
            raise self.trouble
        await super()._open_market(tell)

    @property
    def provider(self):
        side = super().provider
        side.close = self._close_market  # the agents' lines stay
        return side

    async def _close_market(self):
        self._tell = None

    def lose_silently(self, node_id):
        """It is gone, and nobody says so."""
        node = self.nodes.pop(node_id)
        self._gone.add(node.token)
        self._forget(node)


class Slow:
    """A policy that takes its time, and counts how many are at it at once."""

    def __init__(self, name="max-speedup", takes_s=0.0):
        self.policy, self.takes_s = plugins.load("sublet.policies", name)(), takes_s
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def decide(self, snapshot):
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.takes_s)
        with self._lock:
            self.at_once -= 1
        return self.policy.decide(snapshot)


def a_story(folder, **facts):
    story = Story(folder, **facts)
    story.cloud = Unruly()
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)
    return story


def placed(api, job_id="j-1"):
    """Nodes on which its group has workers."""
    return {worker.node_id for worker in api._controller.records[job_id].group.workers.values()}


async def spread_over(api, nodes):
    await until(lambda: asyncio.sleep(0, len(placed(api)) == nodes), f"never on {nodes} nodes")
    await trained(api, "j-1", 5)


# ---------------------------------------------------------------------- a loss that the cloud has not confirmed


def test_nobody_goes_back_to_a_node_whose_end_the_cloud_has_not_confirmed_yet(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(min_workers=1))
            await spread_over(api, 2)
            lost = min(placed(api))
            story.cloud.lose_silently(lost)
            story.cloud.answers.clear()
            ending = asyncio.create_task(api._controller.leases.release_lost(lost))
            for _ in range(50):  # four ticks
                await asyncio.sleep(0.02)
                assert lost not in placed(api)
            step = (await api.job("j-1"))["step"]
            await trained(api, "j-1", step + 5)  # with whom there is, and whoever comes instead
            story.cloud.answers.set()
            await ending
            assert lost not in api._controller.kernel.cluster.nodes
            await spread_over(api, 2)
            await trained(api, "j-1", step + 20)
            assert lost not in placed(api)

    asyncio.run(live())
    check(replay(story.log()))


def test_an_order_to_a_node_that_is_lost_in_the_same_breath_is_void(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            story.cloud._greet = lambda node: None  # no agent comes by itself
            await api.submit(a_spec(min_workers=1))
            inbox, cluster = api._controller.inbox, api._controller.kernel.cluster
            await until(lambda: asyncio.sleep(0, len(story.cloud.nodes) == 2), "no two nodes")
            first, second = sorted(story.cloud.nodes)
            story.cloud.lose_silently(first)
            del story.cloud._greet
            inbox.queue(news.NodeReady(inbox.now_s(), first))
            story.cloud._greet(story.cloud.nodes[second])  # it is ready too: the job is told to start on both
            inbox.queue(news.NodeLost(inbox.now_s(), first))
            inbox.carry_on()
            assert first not in cluster.nodes
            assert first not in placed(api)
            await trained(api, "j-1", 5)
            assert first not in placed(api)

    asyncio.run(live())
    check(replay(story.log()))


# ---------------------------------------------------------------------- a cloud that does not answer at the start


def test_a_controller_that_comes_back_outlives_a_cloud_that_does_not_answer(tmp_path):
    story = a_story(tmp_path)
    story.cloud.trouble = NoAnswer("describe_instances", "503 Service Unavailable")

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec())
            await spread_over(api, 2)
        story.cloud.opens_to_fail, story.cloud.lists_to_fail = 1, 1
        async with story.controller() as api:
            assert story.cloud.opens_to_fail == 0
            await trained(api, "j-1", 5)
            assert len(story.cloud.rented) == 2
        assert story.cloud.nodes == {}

    asyncio.run(live())


def test_a_controller_that_may_not_ask_its_cloud_says_so_and_ends(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec())
            await spread_over(api, 2)
        story.cloud.trouble = NoAccess("describe_instances", "the key was revoked", hint="a new one")
        story.cloud.opens_to_fail = 1
        with (
            api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api,
            pytest.raises(NoAccess, match="revoked"),
        ):
            await api.run()

    asyncio.run(live())


# ---------------------------------------------------------------------- the end of a controller


@pytest.mark.parametrize("owned", [0, 2])
def test_nothing_is_rented_while_a_controller_stops(tmp_path, owned):
    limits = {"spot": Limit(min_nodes=owned, max_nodes=4), "on-demand": Limit(max_nodes=4)}
    story = a_story(tmp_path, limits=limits)
    story.policy = Slow()

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            await spread_over(api, 2)
            story.policy.takes_s, asked = 0.6, list(story.cloud.asked)
        assert story.cloud.asked == asked
        assert story.cloud.nodes == {}

    asyncio.run(live())
    check(replay(story.log()))


def test_a_cloud_that_cannot_be_listed_does_not_keep_a_controller_from_its_end(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            await spread_over(api, 2)
            story.cloud.lists_to_fail = 1
        assert story.cloud.nodes == {}

    asyncio.run(live())


# ---------------------------------------------------------------------- a rent that nobody answered


def test_a_node_whose_agent_came_though_its_rent_was_never_answered_is_lost_not_refused(tmp_path, caplog):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            api._controller.leases._paces = Paces(rent_tries=2)
            story.cloud.unclear = 2
            await api.submit(a_spec(max_workers=1))
            first = (await until(lambda: asyncio.sleep(0, story.cloud.asked), "nothing is rented"))[0]
            await until(lambda: asyncio.sleep(0, first not in story.cloud.nodes), "it was not given back")
            await asyncio.sleep(0.05)
            assert first not in api._controller.kernel.cluster.nodes
            await trained(api, "j-1", 5)

    with caplog.at_level(logging.ERROR):
        asyncio.run(live())
    assert [record.getMessage() for record in caplog.records] == []
    check(replay(story.log()))


def test_a_node_that_came_and_went_before_its_rent_was_answered_is_paid_for(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            story.cloud._greet = lambda node: None  # it dies before its agent has come
            await api.submit(a_spec(max_workers=1))
            await until(lambda: asyncio.sleep(0, story.cloud.nodes), "nothing is rented")
        story.cloud.lose_silently("n1")
        del story.cloud._greet
        async with story.controller() as api:
            await trained(api, "j-1", 5)
            (lease,) = [lease for lease in api._controller.kernel.ledger.closed if lease.node_id == "n1"]
            assert not lease.void

    asyncio.run(live())
    check(replay(story.log()))


# ---------------------------------------------------------------------- a node that is not listed


async def list_nothing():
    return []


def sweep_often(api):
    api._controller.nodes.reaper._paces = Paces(sweep_s=0.3, absences=2)
    api._controller.inbox.spawn(api._controller.nodes.reaper.run(), "sweeping")


def test_a_new_node_is_not_missed_before_clouds_list_it(tmp_path, monkeypatch):
    story = a_story(tmp_path)
    monkeypatch.setattr(Heartbeats, "has_spoken", lambda self, node_id, since_s: False)

    async def live():
        async with story.controller() as api:
            sweep_often(api)
            story.cloud.list = list_nothing
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 5)
            await asyncio.sleep(1.0)
            assert list(api._controller.kernel.cluster.nodes) == story.cloud.rented == ["n1"]

    asyncio.run(live())


def test_a_node_that_speaks_is_there_and_a_silent_one_that_nobody_lists_is_not(tmp_path, monkeypatch):
    story = a_story(tmp_path)
    monkeypatch.setattr(unknown_instances, "LISTED_WITHIN_S", 0.0)

    async def live():
        async with story.controller() as api:
            sweep_often(api)
            story.cloud.list = list_nothing
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 5)
            await asyncio.sleep(1.0)
            nodes = api._controller.kernel.cluster.nodes
            assert list(nodes) == ["n1"]
            story.cloud.lose_silently("n1")
            await until(lambda: asyncio.sleep(0, "n1" not in nodes), "a node that is gone is waited for")

    asyncio.run(live())


# ---------------------------------------------------------------------- the start of the next one


def test_a_controller_that_comes_back_rents_nothing_twice(tmp_path, caplog):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec())
            await spread_over(api, 2)
        story.cloud.take(min(story.cloud.nodes))  # its end is told to whoever comes back
        async with story.controller() as api:
            await spread_over(api, 2)

    with caplog.at_level(logging.ERROR):
        asyncio.run(live())
    assert [record.getMessage() for record in caplog.records] == []
    assert len(story.cloud.asked) == len(set(story.cloud.asked)) == 3


def test_a_controller_that_comes_back_makes_one_plan_at_a_time(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec())
            await spread_over(api, 2)
        story.cloud.take(min(story.cloud.nodes))
        story.policy = Slow(takes_s=0.4)
        async with story.controller() as api:
            await spread_over(api, 2)
        assert story.policy.most_at_once == 1

    asyncio.run(live())


def test_an_unanswered_request_for_a_plan_is_made_again_after_a_restart(tmp_path):
    story = a_story(tmp_path)
    story.policy = Slow(takes_s=0.4)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec())
            assert api._controller.kernel.planning
        async with story.controller() as api:
            await spread_over(api, 2)

    asyncio.run(live())
