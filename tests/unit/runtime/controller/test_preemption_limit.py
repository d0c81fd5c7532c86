"""`retry.preemption`: how often the cloud may take a node of a job."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.jobs.file import json_schema
from sublet.runtime.jobs.spec import Retries
from sublet_lab.memory_cloud import Training
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


async def take_one(story, api, *, notice):
    """The cloud takes the node of the job; returns when another has its place, or the job has ended."""
    (node,) = (await api.job("j-1"))["node_ids"]
    if notice:
        story.cloud.warn(node, 120.0)
    story.cloud.take(node)

    async def moved():
        view = await api.job("j-1")
        return view["phase"] in ("running", "failed") and view["node_ids"] != [node]

    await until(moved, "it never came back")


def test_a_node_that_is_taken_without_a_word_counts_as_well(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1, retries=Retries(preemption=0)))
            await phase(api, "j-1", "running")
            await take_one(story, api, notice=False)
            view = await phase(api, "j-1", "failed")
            assert view["reason"] == "the cloud took a node 1 time, and retry.preemption is 0"

    asyncio.run(live())


def test_a_job_is_given_up_when_the_cloud_took_its_nodes_too_often_and_can_be_resumed(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000, step_s=0.001)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1, retries=Retries(preemption=1)))
            await phase(api, "j-1", "running")
            await take_one(story, api, notice=True)
            await phase(api, "j-1", "running")
            await trained(api, "j-1", (await api.job("j-1"))["step"] + 1_000)
            assert (await api.job("j-1"))["phase"] == "running", "one is allowed"
            await take_one(story, api, notice=True)
            view = await phase(api, "j-1", "failed")
            assert view["reason"] == "the cloud took a node 2 times, and retry.preemption is 1"
            assert any(event["text"].startswith("failed: the cloud took") for event in await api.events("j-1"))
            assert view["node_ids"] == []
            adds_up(api)
            await api.resume("j-1")
            await phase(api, "j-1", "running")
            step = (await api.job("j-1"))["step"]
            await trained(api, "j-1", step + 1)
            await take_one(story, api, notice=True)
            await phase(api, "j-1", "running")

    asyncio.run(live())


def test_without_a_limit_the_cloud_may_take_nodes_for_ever(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await phase(api, "j-1", "running")
            for _ in range(4):
                await take_one(story, api, notice=True)
                await phase(api, "j-1", "running")

    asyncio.run(live())


def test_the_schema_says_that_the_time_to_stop_is_real_time():
    assert "Real time" in json_schema()["properties"]["stop_duration"]["description"]
