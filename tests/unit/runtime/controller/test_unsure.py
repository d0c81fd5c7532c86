"""Scripts that keep their files in their own directory: whether they go on from them, and what their work was for."""

from __future__ import annotations

import asyncio

import pytest

from sublet.domain.money import Money
from sublet.runtime.controller.memory.records import Start
from sublet.runtime.jobs.spec import Retries
from tests.rigs.scripts import Scene, Widths, a_script, earning, living, planned_again, start_over
from tests.rigs.story import adds_up, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")
WROTE = {"looked": True, "wrote_ago_s": 0.0}


async def started(story, times):
    await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == times), "it does not start")


async def wrote_and_lost(story, api, **facts):
    """Its first start has written something, and its node is lost."""
    await api.submit(a_script(**facts))
    await earning(api)
    story.cloud.see(**WROTE)
    story.cloud.take(next(iter(story.cloud.nodes)))
    await started(story, 2)
    await phase(api, "j-1", "running")


def test_what_a_script_wrote_in_its_directory_may_have_been_kept_and_its_work_is_unknown(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        for start in range(1, 6):
            await started(story, start)
            await earning(api)
            story.cloud.looks = WROTE
            await start_over(api)
        await started(story, 6)
        bill = await api.cost("j-1")
        assert (bill["usd_useful"], bill["usd_redone"]) == (0, 0)
        assert bill["usd_unknown"] >= 0.1
        (warning,) = (await api.job("j-1"))["warnings"]
        assert "unknown" in warning
        assert "started over" not in warning
        assert api.record("j-1").starts_over == 0

    living(story, scene)


def test_a_start_of_which_nothing_was_seen_is_unknown_and_for_nothing_once_it_is_seen_where_the_script_saves(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        story.cloud.looks = {}
        await start_over(api)
        await started(story, 2)
        unseen = await api.cost("j-1")
        assert (unseen["usd_redone"], unseen["usd_unknown"] >= 0.02) == (0, True)
        await earning(api)
        story.cloud.looks = {"looked": True}
        await start_over(api)
        await started(story, 3)
        bill = await api.cost("j-1")
        assert (bill["usd_redone"], bill["usd_unknown"] >= 0.04) == (0, True)
        await phase(api, "j-1", "running")
        assert any("unknown" in note for note in (await api.explain("j-1"))["notes"])
        story.cloud.see(saved_ago_s=0.0)
        bill = await api.cost("j-1")
        assert bill["usd_redone"] >= 0.02
        assert bill["usd_unknown"] >= 0.02  # the first: it may have written what was not looked for

    living(story, scene)


def test_one_that_says_with_its_code_that_it_saved_does_not_say_where(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        story.cloud.obeys = -15
        await start_over(api)
        await started(story, 2)
        await earning(api)
        story.cloud.obeys = 83
        await start_over(api)
        await started(story, 3)
        await earning(api)
        story.cloud.obeys = -15
        await start_over(api)
        await started(story, 4)
        bill = await api.cost("j-1")
        assert (bill["usd_useful"] >= 0.02, bill["usd_redone"], bill["usd_unknown"] >= 0.04) == (True, 0, True)

    living(story, scene)


def test_one_that_goes_on_from_what_it_saved_and_is_lost_before_it_saves_again_does_that_again(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        story.cloud.see(saved_ago_s=0.0)
        story.cloud.take(next(iter(story.cloud.nodes)))
        await started(story, 2)
        before = (await api.cost("j-1"))["usd_redone"]
        await earning(api)
        story.cloud.see(loaded="yes")
        story.cloud.take(next(iter(story.cloud.nodes)))
        await started(story, 3)
        assert (await api.cost("j-1"))["usd_redone"] >= before + 0.02
        assert (api.record("j-1").starts_over, api.record("j-1").unsure) == (0, [])

    living(story, scene)


def test_one_that_reads_a_snapshot_in_its_directory_had_saved_nothing_where_nothing_was_seen_there(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        await start_over(api)  # before its first snapshot
        await started(story, 2)
        await earning(api)
        story.cloud.looks = WROTE
        await start_over(api)
        await started(story, 3)
        first, second = api.record("j-1").unsure
        await phase(api, "j-1", "running")
        story.cloud.see(loaded="yes", loaded_ago_s=0.0, saved_ago_s=0.0, **WROTE)
        bill = await api.cost("j-1")
        assert bill["usd_redone"] >= Money(first.grains).usd
        assert bill["usd_useful"] >= Money(second.grains).usd * 0.9

    living(story, scene)


def test_a_later_start_that_reads_what_was_written_says_what_was_kept(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await wrote_and_lost(story, api)
        unknown = Money(api._controller.table.unsure_grains("j-1")).usd
        (first,) = api.record("j-1").unsure
        half_s = (first.began_s + first.ended_s) / 2
        await earning(api)
        ago_s = (api._controller.now_s() - half_s) / 3600.0
        story.cloud.see(loaded="yes", loaded_ago_s=ago_s)
        assert (await api.cost("j-1"))["usd_redone"] == 0  # it may read something newer yet
        story.cloud.see(loaded="yes", loaded_ago_s=ago_s, saved_ago_s=0.0, **WROTE)
        bill = await api.cost("j-1")
        assert bill["usd_redone"] == pytest.approx(unknown / 2, rel=0.3)
        assert bill["usd_useful"] >= unknown / 2 * 0.7 + 0.02
        assert api.record("j-1").unsure == []
        story.cloud.take(next(iter(story.cloud.nodes)))
        await started(story, 3)
        assert (await api.job("j-1"))["warnings"] == []
        assert api.record("j-1").starts_over == 0

    living(story, scene)


def test_a_start_that_read_and_was_lost_before_it_saved_still_shows_what_was_kept(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await wrote_and_lost(story, api)
        story.cloud.see(loaded="yes", loaded_ago_s=0.0)
        story.cloud.take(next(iter(story.cloud.nodes)))
        await started(story, 3)
        bill = await api.cost("j-1")
        assert bill["usd_useful"] >= 0.02
        assert bill["usd_redone"] <= bill["usd_useful"]

    living(story, scene)


def test_earlier_starts_stay_unknown_when_the_last_one_finishes_or_fails(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await wrote_and_lost(story, api)
        unknown = Money(api._controller.table.unsure_grains("j-1")).usd
        await earning(api)
        story.cloud.end_all(0)
        view = await phase(api, "j-1", "finished")
        assert view["usd_unknown"] == pytest.approx(unknown, rel=0.01)
        assert view["usd_useful"] >= 0.02

    living(story, scene)


def test_a_failed_script_that_had_written_something_is_unknown(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script(retries=Retries(user=0)))
        await earning(api)
        story.cloud.looks = WROTE
        story.cloud.end_all(1, "boom")
        view = await phase(api, "j-1", "failed")
        assert (view["usd_useful"], view["usd_redone"], view["usd_unknown"] >= 0.02) == (0, 0, True)

    living(story, scene)


def test_one_that_failed_and_is_resumed_goes_on_from_what_it_wrote(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script(retries=Retries(user=0)))
        await earning(api)
        story.cloud.looks = WROTE
        story.cloud.end_all(1, "boom")
        await phase(api, "j-1", "failed")
        await api.resume("j-1")
        await started(story, 2)
        await phase(api, "j-1", "running")
        story.cloud.see(loaded="yes", loaded_ago_s=0.0, saved_ago_s=0.0, **WROTE)
        bill = await api.cost("j-1")
        assert bill["usd_useful"] >= 0.02
        assert bill["usd_redone"] < 0.005  # of the second, before it was looked at

    living(story, scene)


def test_no_plan_moves_a_script_of_which_it_is_unknown_whether_it_would_go_on(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(1)

    async def scene(api):
        await api.submit(a_script(max_workers=2))
        await earning(api)
        story.cloud.see(**WROTE)
        story.policy.wide = 2
        await planned_again(api)
        assert api._controller.kernel.jobs["j-1"].shape.gpus == 1
        assert any("unknown" in note for note in (await api.explain("j-1"))["notes"])

    living(story, scene)


def test_what_is_unknown_stays_so_over_a_restart_of_the_controller(tmp_path):
    story = Scene(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await wrote_and_lost(story, api)
            api._controller.jobs.save_all_facts()
            before = list(api.record("j-1").unsure)
        async with story.controller() as api:
            assert api.record("j-1").unsure == before
            bill = await api.cost("j-1")
            assert (bill["usd_redone"], bill["usd_unknown"] >= 0.02) == (0, True)
            adds_up(api)

    asyncio.run(live())


def test_the_first_start_is_told_to_agents_with_every_later_one(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await wrote_and_lost(story, api)
        first, second = story.cloud.orders
        assert not first.began_ago_s
        assert second.began_ago_s > 0

    living(story, scene)


def test_the_work_of_a_start_is_even_over_its_time():
    start = Start(100.0, 150.0, 200.0, 1000)
    assert [start.grains_by(at_s) for at_s in (50.0, 100.0, 125.0, 200.0, 300.0)] == [0, 0, 250, 1000, 1000]
