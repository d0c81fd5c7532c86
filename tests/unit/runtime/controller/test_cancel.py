"""What `cancel` promises: a last checkpoint before the end, and none with `--now`."""

from __future__ import annotations

import asyncio

import pytest

from sublet.errors import NotNow
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet_lab.memory_cloud import Training
from tests.rigs.story import Story, a_spec, adds_up, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")


async def cancelled_at(story, *, now):
    """(the step that was saved, the step that the job had reached when it was told)."""
    async with story.controller() as api:
        await api.submit(a_spec())
        await trained(api, "j-1", 12)
        step = (await api.cancel("j-1", now=now))["step"]
        await phase(api, "j-1", "cancelled")
        await until(lambda: asyncio.sleep(0, not story.cloud.nodes), "its nodes are kept")
        adds_up(api)
    return story.cloud.jobs["j-1"].saved, step


def test_a_cancelled_job_saves_before_it_ends(tmp_path):
    story = Story(tmp_path)
    saved, step = asyncio.run(cancelled_at(story, now=False))
    assert saved >= step >= 12
    check(replay(story.log()))


def test_a_job_that_is_cancelled_now_saves_nothing(tmp_path):
    saved, _ = asyncio.run(cancelled_at(Story(tmp_path), now=True))
    assert saved == 0


def test_a_job_that_is_being_cancelled_is_not_resumed_and_now_ends_it_at_once(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            await trained(api, "j-1", 5)
            story.cloud.deaf = True  # nobody obeys: it does not come to save
            view = await api.cancel("j-1")
            assert (view["phase"], view["reason"]) == ("stopping", "saves, and is ended then")
            with pytest.raises(NotNow, match="being cancelled"):
                await api.resume("j-1")
            assert (await api.cancel("j-1", now=True))["phase"] == "cancelled"

    story.cloud._arrive = _unless_deaf(story.cloud)
    story.cloud.deaf = False
    asyncio.run(live())


def _unless_deaf(cloud):
    arrive = cloud._arrive
    return lambda node_id, message: None if cloud.deaf else arrive(node_id, message)


def test_a_job_that_waits_is_cancelled_at_once(tmp_path):
    story = Story(tmp_path)
    story.cloud.sold_out = {"spot", "on-demand"}

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            assert (await api.cancel("j-1"))["phase"] == "cancelled"

    asyncio.run(live())


def test_a_cancel_that_a_crash_interrupts_is_carried_out_by_the_next_controller(tmp_path):
    story = Story(tmp_path)
    story.cloud.jobs["j-1"] = Training(steps=10_000)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec())
            await trained(api, "j-1", 5)
            await api.cancel("j-1")
        async with story.controller() as api:
            await phase(api, "j-1", "cancelled")
            adds_up(api)
        assert story.cloud.nodes == {}

    asyncio.run(live())
    assert story.cloud.jobs["j-1"].saved >= 5
