"""A job with the SDK that ends unfinished: what it had done since its last checkpoint was for nothing."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.jobs.spec import Retries
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import Training
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


async def running(story, api, steps=60):
    await api.submit(a_spec(max_workers=1, retries=Retries(user=0)))
    await trained(api, "j-1", steps)
    ((node, worker),) = [(node, w) for node in story.cloud.nodes.values() for w in node.workers.values()]
    return node, worker


def saves(story, node, worker):
    """A checkpoint of where it is."""
    facts = {"step": worker.step, "done": float(worker.step), "seconds": 0.0, "blocked_s": 0.0, "size_bytes": 1}
    story.cloud.jobs["j-1"].saved = worker.step
    story.cloud._word(node.id, wire.Saved(worker_id=worker.id, **facts))


async def ends(story, api, node, worker, how):
    if how == "failed":
        story.cloud._end(node, worker, 1, "boom")
    else:
        await api.cancel("j-1", now=True)
    return await phase(api, "j-1", how)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_one_that_ends_without_a_checkpoint_was_for_nothing(tmp_path, how):
    story = Story(tmp_path, speedup=3600.0)

    async def live():
        async with story.controller() as api:
            view = await ends(story, api, *await running(story, api), how)
            assert (view["usd_useful"], view["usd_redone"] > 0.2) == (0, True)
            assert not (await api.cost("j-1"))["usd_on_demand"]
            adds_up(api)
        async with story.controller() as api:  # and the next controller says the same
            again = await api.job("j-1")
            assert (again["usd_useful"], again["usd_redone"]) == (0, pytest.approx(view["usd_redone"]))

    asyncio.run(live())


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_what_it_had_saved_stays_useful(tmp_path, how):
    story = Story(tmp_path, speedup=3600.0)

    async def live():
        async with story.controller() as api:
            node, worker = await running(story, api)
            saves(story, node, worker)
            at = worker.step
            await trained(api, "j-1", 2 * at)
            view = await ends(story, api, node, worker, how)
            lost = 1.0 - at / view["step"]
            assert view["usd_redone"] / (view["usd_useful"] + view["usd_redone"]) == pytest.approx(lost, abs=0.01)
            adds_up(api)

    asyncio.run(live())


def test_one_that_saves_before_it_goes_loses_nothing(tmp_path):
    story = Story(tmp_path, speedup=3600.0)

    async def live():
        async with story.controller() as api:
            await running(story, api)
            await api.cancel("j-1")
            view = await phase(api, "j-1", "cancelled")
            assert (view["usd_redone"], view["usd_useful"] > 0.2) == (0, True)

    asyncio.run(live())


def test_what_a_failure_threw_away_is_not_thrown_away_again_when_it_is_resumed(tmp_path):
    story = Story(tmp_path, speedup=3600.0)

    async def live():
        async with story.controller() as api:
            view = await ends(story, api, *await running(story, api), "failed")
            story.cloud.jobs["j-1"] = Training(steps=40)
            await api.resume("j-1")
            done = await phase(api, "j-1", "finished")
            assert done["steps_lost"] == view["steps_lost"] > 0
            assert done["usd_redone"] == pytest.approx(view["usd_redone"])
            assert done["usd_useful"] > 0
            await until(lambda: asyncio.sleep(0, not story.cloud.nodes), "something is left")
            adds_up(api)

    asyncio.run(live())
