"""Damaged checkpoints are told of; a job that has no other is held, and its owner decides."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.clock import Clock
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.story import OFFERS, Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


class Rotten(MemoryCloud):
    """The disk of checkpoints: `rotten` paths are damaged, `good` is the step of one that is not."""

    rotten, good = ("/ck/step-900", "/ck/step-800"), -1

    def _regroup(self, worker, order):
        over = "SUBLET_START_OVER" in self.started[worker.id].env
        if order.rank == 0 and worker.step < 0 and self.rotten and not over:
            self._word(
                worker.node_id, wire.Damaged(worker_id=worker.id, paths=self.rotten, why="digest", step=self.good)
            )
            if self.good < 0:
                return
            self.jobs[worker.job_id].saved = self.good
        super()._regroup(worker, order)

    def __init__(self, offers, clock):
        super().__init__(offers, clock)
        self.started = {}

    def _start(self, node, message):
        self.started[message.worker_id] = message
        super()._start(node, message)


def a_story(folder):
    story = Story(folder)
    story.cloud = Rotten(OFFERS, Clock(speedup=60.0))
    story.cloud.jobs["j-1"] = Training(steps=100_000)
    return story


async def texts(api, kind):
    return [event["text"] for event in await api.events() if event["kind"] == kind]


def test_a_job_without_a_checkpoint_that_can_be_trusted_is_held_and_begins_at_0_only_when_told_to(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            view = await phase(api, "j-1", "paused")
            assert "damaged" in view["reason"]
            assert "--start-over" in view["reason"]
            assert view["step"] == 0
            await until(lambda: asyncio.sleep(0, not story.cloud.nodes), "it is held and costs money")
            assert any("step-900" in text and "none is left" in text for text in await texts(api, "Damaged"))
            assert any("--start-over" in text for text in await texts(api, "Alarm"))
            assert (await api.metrics())["checkpoints_damaged"] == 2
            await api.resume("j-1")  # perhaps they were mended meanwhile: no
            await until(lambda: asyncio.sleep(0, len(story.cloud.started) == 2), "it does not look again")
            await phase(api, "j-1", "paused")
            assert (await api.metrics())["checkpoints_damaged"] == 2
            await api.resume("j-1", start_over=True)
            await trained(api, "j-1", 5)
            adds_up(api)

    asyncio.run(live())


def test_a_damaged_checkpoint_that_was_passed_over_is_an_event_and_a_metric(tmp_path):
    story = a_story(tmp_path)
    story.cloud.good = 700

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            await trained(api, "j-1", 701)
            (text,) = await texts(api, "Damaged")
            assert "step 700 is used" in text
            assert (await api.metrics())["checkpoints_damaged"] == 2
            assert await texts(api, "Alarm") == []

    asyncio.run(live())


def test_a_job_that_begins_at_0_though_it_has_saved_is_an_alarm(tmp_path):
    story = a_story(tmp_path)
    story.cloud.rotten = ()

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 5)
            await api.pause("j-1")
            saved = (await phase(api, "j-1", "paused"))["checkpoint_step"]
            assert saved >= 5
            assert await texts(api, "Alarm") == []
            story.cloud.jobs["j-1"].saved = 0  # it lay on the node, and went with it
            await api.resume("j-1")
            (text,) = await until(lambda: texts(api, "Alarm"), "nobody is told")
            assert f"though a checkpoint of step {saved}" in text
            assert "s3://bucket/prefix" in text

    asyncio.run(live())


def test_a_job_is_also_held_where_it_had_trained_before_and_lost_all_its_nodes(tmp_path):
    story = a_story(tmp_path)
    story.cloud.rotten = ()

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 5)
            story.cloud.rotten = ("/ck/step-4",)
            story.cloud.take(next(iter(story.cloud.nodes)))
            view = await phase(api, "j-1", "paused")
            assert view["failures_infra"] == 0

    asyncio.run(live())
