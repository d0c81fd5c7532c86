"""A market that moves all day does not fill the history of those who hold little of it."""

from __future__ import annotations

import asyncio

import pytest

from sublet.domain.events import AvailabilityChanged
from sublet.wire.messages import Noticed
from sublet_lab.memory_cloud import Training
from tests.rigs.story import Story, a_spec, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_supply_is_told_when_it_holds_us_back_and_when_it_ceases_to(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=2, market="spot"))
            await phase(api, "j-1", "running")
            for nodes in (30, 28, 31, 17, 20, 2, 2, 1, 2, 25, 28, 30, 4, 9):
                api._controller.leases.take_news(AvailabilityChanged(api._controller.now_s(), "spot", nodes))
            api._controller.leases.take_news(AvailabilityChanged(api._controller.now_s(), "on-demand", 3))

            async def heard():
                told = [event["text"] for event in await api.events() if event["kind"] == "AvailabilityChanged"]
                return told[:-1] if told[-1:] == ["on-demand has at most 3 nodes now"] else None

            told = await until(heard, "the last of them was not heard")
            assert told == [
                "spot has at most 30 nodes now",
                "spot has at most 2 nodes now",
                "spot has at most 25 nodes now",
            ]

    asyncio.run(live())


def test_a_recommendation_to_rebalance_is_told_and_takes_nobody_anywhere(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1, market="spot"))
            await phase(api, "j-1", "running")
            (node_id,) = (await api.job("j-1"))["node_ids"]
            api._controller.nodes.agents.receive(node_id, Noticed(node_id=node_id, in_s=0.0, kind="rebalance"))

            async def told():
                return [event for event in await api.events() if event["kind"] == "NodeThreatened"]

            (event,) = await until(told, "it was not told")
            assert (event["node_id"], event["text"]) == (node_id, "is more likely to be taken, says the cloud")
            view = await api.job("j-1")
            assert (view["phase"], view["node_ids"]) == ("running", [node_id])

    asyncio.run(live())


def test_the_history_says_what_the_budget_is(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.set_budget(burn_limit_usd_per_h=2.0)
            await api.set_budget(purse_usd=5.0)
            texts = [event["text"] for event in await api.events()]
            assert "the budget is at most USD 2.00/h" in texts
            assert "the budget is at most USD 2.00/h, USD 5.00 in all" in texts

    asyncio.run(live())


def test_one_worker_is_no_range(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await api.scale("j-1", low=1, high=3)
            texts = [event["text"] for event in await api.events("j-1")]
            assert "submitted: 1 worker" in texts
            assert "1 to 3 workers from now on" in texts

    asyncio.run(live())
