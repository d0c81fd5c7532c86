"""Scripts that save with `train.checkpointed`: what they say of themselves counts, and is planned and billed by."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.controller.memory.records import kernel_job
from sublet.wire import messages as wire
from tests.rigs.scripts import Scene, Widths, a_script, earning, living, planned_again
from tests.rigs.story import phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


def began(story, step, *, work=100.0, source="fresh", generation=1):
    story.cloud.hear(
        wire.Joined, generation=generation, step=step, done=float(step), work=work, global_batch=1, source=source
    )


def stepped(story, step, *, step_s=0.5):
    story.cloud.hear(
        wire.Stepped,
        generation=1,
        step=step,
        done=float(step),
        epoch=0,
        loss=float("nan"),
        step_s=step_s,
        global_batch=1,
        local_batch=1,
    )


def saved(story, step):
    story.cloud.hear(wire.Saved, step=step, done=float(step), seconds=0.1, blocked_s=0.0, size_bytes=9)


def test_how_far_it_is_is_shown_and_planned_by(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await phase(api, "j-1", "running")
        assert (await api.job("j-1"))["progress"] is None
        began(story, 0)
        for step in range(10, 71, 10):
            stepped(story, step)
        view = await api.job("j-1")
        assert (view["step"], view["work"], view["progress"]) == (70, 100.0, 0.7)
        assert (view["loss"], view["samples_per_s"], view["step_s"]) == (None, None, 0.5)
        assert view["eta_s"] is not None
        record = api.record("j-1")
        assert record.share == 0.7
        rate = kernel_job(record, 1.0).speed.measured[0].rate
        assert rate == pytest.approx(1 / (100 * 0.5))  # whole jobs a second

    living(story, scene)


def test_one_that_does_not_say_how_long_it_is_shows_its_step_and_no_share(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await phase(api, "j-1", "running")
        began(story, 0, work=0.0)
        stepped(story, 40)
        view = await api.job("j-1")
        assert (view["step"], view["work"], view["progress"], view["eta_s"]) == (40, None, None, None)

    living(story, scene)


def test_no_plan_resizes_it_before_it_has_said_that_it_saved(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(1)

    async def scene(api):
        await api.submit(a_script(max_workers=2))
        await earning(api)
        began(story, 0)
        stepped(story, 50)
        story.policy.wide = 2
        await planned_again(api)
        assert api._controller.kernel.jobs["j-1"].shape.gpus == 1
        saved(story, 50)
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 3), "it never grows")

    living(story, scene)


@pytest.mark.parametrize("source", ["fresh", "checkpoint"])
def test_what_a_start_says_that_it_began_from_decides_what_was_for_nothing(tmp_path, source):
    """Whatever is seen from outside: files that were read may have been read by somebody else."""
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        began(story, 0)
        stepped(story, 50)
        saved(story, 50)
        kept = (await api.cost("j-1"))["usd_useful"]
        assert kept >= 0.02
        stepped(story, 60)
        await earning(api)
        story.cloud.take(next(iter(story.cloud.nodes)))
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "it does not start again")
        await phase(api, "j-1", "running")
        step = 50 if source == "checkpoint" else 0
        began(story, step, source=source, generation=2)
        story.cloud.see(loaded="no" if source == "checkpoint" else "yes")
        view = await api.job("j-1")
        assert (view["step"], view["steps_lost"]) == (step, 60 - step)
        assert view["usd_redone"] >= 0.01  # what came after the save
        before = view["usd_redone"]
        await earning(api)
        stepped(story, step + 10)
        saved(story, step + 10)
        after = await api.cost("j-1")
        if source == "checkpoint":
            assert after["usd_redone"] == pytest.approx(before, rel=0.01)
            assert after["usd_useful"] >= kept
        else:
            assert after["usd_redone"] >= before + kept * 0.99

    living(story, scene)


def test_at_a_notice_it_is_asked_to_save_and_nobody_else_is(tmp_path):
    for tells in (True, False):
        story = Scene(tmp_path / str(tells))
        asked = []
        send = story.cloud.send

        def noted(node_id, message, send=send, asked=asked):
            asked.extend([message] if isinstance(message, wire.SaveNow) else [])
            send(node_id, message)

        story.cloud.send = noted

        async def scene(api, story=story, asked=asked, tells=tells):
            await api.submit(a_script())
            await phase(api, "j-1", "running")
            if tells:
                began(story, 0)
            ((node, worker),) = story.cloud.running()
            story.cloud.warn(node.id, 3600.0)
            await until(lambda: asyncio.sleep(0, api.record("j-1").noticed == 1), "nobody hears of it")
            await asyncio.sleep(0)
            assert [message.worker_id for message in asked] == ([worker.id] if tells else [])

        living(story, scene)


def test_the_time_from_its_start_to_its_first_word_is_what_a_change_of_width_costs(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await phase(api, "j-1", "running")
        await asyncio.sleep(3.0)
        began(story, 0)
        record = api.record("j-1")
        (pause_s,) = record.pauses_s
        assert pause_s >= 3.0
        assert kernel_job(record, 10.0).restart_s == pytest.approx(10.0 * pause_s)

    living(story, scene)
