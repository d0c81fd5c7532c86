"""Scripts without the SDK under the real controller: what is useful, who may move them, what is said.

They are processes that are none: a test says when one saves, ends or hangs.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sublet.domain.events import TimerFired
from sublet.domain.timers import CheckPurse
from sublet.machine.wall import WALL
from sublet.runtime.jobs.spec import Retries
from sublet.runtime.store import Store
from sublet.wire import messages as wire
from tests.rigs.scripts import Scene, Widths, a_script, earning, living, planned_again, start_over, texts
from tests.rigs.story import Story, a_spec, adds_up, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_a_cancel_promises_no_checkpoint_that_only_the_script_could_make(tmp_path):
    async def scene(api):
        await api.submit(a_script())
        await phase(api, "j-1", "running")
        view = await api.cancel("j-1")
        assert view["phase"] == "stopping"
        assert view["reason"] == "gets SIGTERM, on which it may save by itself, and is ended then"
        await phase(api, "j-1", "cancelled")

    living(Scene(tmp_path), scene)


# ---------------------------------------------------------------------- the bill


def test_a_script_is_unknown_until_it_has_finished_and_useful_then(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        bill = await api.cost("j-1")
        assert bill["usd_useful"] == 0
        assert bill["usd_unknown"] > 0
        story.cloud.end_all(0)
        await phase(api, "j-1", "finished")
        bill = await api.cost("j-1")
        assert bill["usd_unknown"] == 0
        assert bill["usd_useful"] >= 0.02

    living(story, scene)


def test_the_work_of_a_script_that_crashes_is_not_useful_but_unknown(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script(retries=Retries(user=0)))
        await earning(api)
        story.cloud.end_all(1, "ModuleNotFoundError: no module named torhc")
        await phase(api, "j-1", "failed")
        bill = await api.cost("j-1")
        assert (bill["usd_useful"], bill["usd_redone"], bill["usd_unknown"] >= 0.02) == (0, 0, True)

    living(story, scene)


def test_what_was_saved_is_useful_and_the_rest_of_a_start_over_is_redone(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        story.cloud.see(saved_ago_s=0.0)
        saved = (await api.cost("j-1"))["usd_useful"]
        assert saved >= 0.02
        await earning(api)
        story.cloud.take(next(iter(story.cloud.nodes)))
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "it does not start again")
        bill = await api.cost("j-1")
        assert bill["usd_useful"] == pytest.approx(saved, rel=0.2)
        assert bill["usd_redone"] > 0.01
        story.cloud.end_all(0)
        view = await phase(api, "j-1", "finished")
        assert view["usd_redone"] == pytest.approx(bill["usd_redone"])

    living(story, scene)


def test_a_script_that_saves_when_it_is_told_to_go_loses_nothing(tmp_path):
    story = Scene(tmp_path, obeys=83)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        await api.pause("j-1")
        await phase(api, "j-1", "paused")
        bill = await api.cost("j-1")
        assert bill["usd_useful"] >= 0.02
        assert (bill["usd_redone"], bill["usd_unknown"]) == (0, 0)

    living(story, scene)


def test_the_split_of_the_bill_survives_a_restart(tmp_path):
    story = Scene(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_script())
            await earning(api)
            story.cloud.see()
            story.cloud.take(next(iter(story.cloud.nodes)))
            await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "it does not start again")
            await earning(api)
            story.cloud.see(saved_ago_s=0.0)
            api._controller.tell(TimerFired(api._controller.now_s(), CheckPurse()))  # something to log
            before = await api.cost("j-1")
            api._controller.jobs.save_all_facts()
        async with story.controller() as api:
            after = await api.cost("j-1")
            assert after["usd_redone"] == pytest.approx(before["usd_redone"], rel=1e-3)
            assert after["usd_useful"] == pytest.approx(before["usd_useful"], rel=0.1)
            assert before["usd_redone"] >= 0.02
            adds_up(api)

    asyncio.run(live())


def test_what_was_thrown_away_is_not_counted_as_saved_against_on_demand(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        for start in range(1, 4):
            await until(lambda start=start: asyncio.sleep(0, len(story.cloud.orders) == start), "it does not start")
            await earning(api)
            await start_over(api)
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 4), "it does not start")
        await phase(api, "j-1", "running")
        story.cloud.see(saved_ago_s=0.0)  # there, and the others did not
        bill = await api.cost("j-1")
        assert bill["usd_redone"] >= 0.06
        assert (bill["usd_on_demand"] or 0.0) < bill["usd_total"]

    living(story, scene)


# ---------------------------------------------------------------------- one that saves and does not load


async def saved_once(story, api, **facts):
    """It has saved in its first start, and is started again."""
    await api.submit(a_script(**facts))
    await earning(api)
    story.cloud.see(saved_ago_s=0.0)
    story.cloud.take(next(iter(story.cloud.nodes)))
    await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "it does not start again")
    await earning(api)
    return await api.cost("j-1")


def test_what_a_script_saved_and_did_not_read_is_redone_and_its_owner_is_told_at_once(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        bill = await saved_once(story, api)
        assert bill["usd_useful"] >= 0.02
        story.cloud.see(loaded="no")
        assert (await api.job("j-1"))["warnings"] == []  # it may still load
        story.cloud.see(loaded="no", saved_ago_s=0.0)
        after = await api.cost("j-1")
        assert after["usd_redone"] >= bill["usd_redone"] + bill["usd_useful"] * 0.99
        assert after["usd_useful"] == pytest.approx(after["usd_total"] - after["usd_redone"], abs=0.05)
        (warning,) = (await api.job("j-1"))["warnings"]
        assert "saves but does not load" in warning
        assert api.record("j-1").starts_over == 1
        story.cloud.see(loaded="no", saved_ago_s=0.0)  # told once
        assert api.record("j-1").starts_over == 1
        await until(lambda: texts(api, "Alarm"), "no event says so")
        assert await texts(api, "Alarm") == [warning]
        story.cloud.take(next(iter(story.cloud.nodes)))
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 3), "it does not start again")
        assert "saves but does not load" in story.cloud.orders[-1].note
        assert api.record("j-1").starts_over == 1  # counted when it wrote anew
        await phase(api, "j-1", "running")
        story.cloud.see(loaded="yes", saved_ago_s=0.0)  # it was mended
        assert (await api.job("j-1"))["warnings"] == []

    living(story, scene)


def test_a_script_that_does_not_load_is_moved_by_no_plan_and_one_that_does_is(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(1)

    async def scene(api):
        await saved_once(story, api, market="auto")
        story.cloud.see(loaded="no", saved_ago_s=0.0)
        story.policy.markets.reverse()
        await planned_again(api)
        assert api._controller.kernel.jobs["j-1"].shape.pool == "T4x1:spot"
        story.cloud.see(loaded="yes", saved_ago_s=0.0)
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 3), "it is nailed down")

    living(story, scene)


@pytest.mark.parametrize("loaded", ["yes", "unknown", ""])
def test_a_script_that_loads_keeps_what_it_saved_and_so_does_one_of_which_it_cannot_be_known(tmp_path, loaded):
    story = Scene(tmp_path)

    async def scene(api):
        bill = await saved_once(story, api)
        story.cloud.see(loaded=loaded, saved_ago_s=0.0)
        after = await api.cost("j-1")
        assert after["usd_redone"] == bill["usd_redone"]
        assert after["usd_useful"] >= bill["usd_useful"] + 0.01
        warnings = (await api.job("j-1"))["warnings"]
        assert ["noatime" in warning for warning in warnings] == [True] * (loaded == "unknown")

    living(story, scene)


def test_one_that_reads_nothing_and_finishes_has_done_it_all_again(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        bill = await saved_once(story, api)
        await earning(api)
        story.cloud.see(loaded="no")
        story.cloud.end_all(0)
        after = await phase(api, "j-1", "finished")
        assert after["usd_redone"] >= bill["usd_redone"] + bill["usd_useful"] * 0.99
        assert after["usd_useful"] >= 0.02

    living(story, scene)


def test_files_that_others_left_in_the_directory_are_none_of_its_work(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        story.cloud.see(loaded="no", saved_ago_s=0.0)
        view = await api.job("j-1")
        assert view["usd_useful"] >= 0.02
        assert (view["usd_redone"], view["warnings"]) == (0, [])

    living(story, scene)


# ---------------------------------------------------------------------- a hang


def test_a_script_that_prints_and_computes_nothing_for_long_is_started_again_and_that_time_is_not_useful(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script(hang_s=100.0))
        await earning(api)
        story.cloud.see(quiet_s=99.0)
        await asyncio.sleep(0.3)
        assert len(story.cloud.orders) == 1 or (await api.job("j-1"))["failures_infra"] == 1  # a slow machine
        story.cloud.see(quiet_s=101.0)
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "it hangs for ever")
        view = await api.job("j-1")
        assert view["failures_infra"] == 1
        assert view["usd_useful"] == 0
        assert view["usd_restart"] > 0.02  # all of it: it hung for longer than it had run
        assert any("hangs" in text for text in await texts(api, "Restarted"))

    living(story, scene)


def test_a_session_that_hangs_is_billed_as_useful_up_to_its_last_step(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.runtime.group.states.SILENT_S", 1.0)
    monkeypatch.setattr("sublet.runtime.group.states.FIRST_STEP_S", 1.0)
    story = Story(tmp_path, speedup=3600.0)

    async def scene(api):
        await api.submit(a_spec(max_workers=1))
        await until(lambda: asyncio.sleep(0, story.cloud.groups), "it never trains")
        story.cloud.groups.clear()  # nobody makes a step, nobody says why
        before = (await api.cost("j-1"))["usd_useful"]
        await until(lambda: texts(api, "Restarted"), "it hangs for ever")
        bill = await api.cost("j-1")
        assert bill["usd_restart"] > 0.3  # an hour of the cloud, at 0.5/h
        assert bill["usd_useful"] <= before + 0.2

    living(story, scene)


# ---------------------------------------------------------------------- who may move it


def test_no_plan_resizes_a_script_before_it_has_saved(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(1)

    async def scene(api):
        await api.submit(a_script(max_workers=2))
        await earning(api)
        story.policy.wide = 2
        await planned_again(api)
        assert api._controller.kernel.jobs["j-1"].shape.gpus == 1
        story.cloud.see(saved_ago_s=0.0)
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 3), "it never grows")
        assert (await phase(api, "j-1", "running"))["workers"] == 2

    living(story, scene)


def test_a_script_that_has_not_saved_leaves_a_node_that_will_be_taken_and_no_other(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(1)

    async def scene(api):
        await api.submit(a_script(market="auto"))
        await earning(api)
        ((node, _),) = story.cloud.running()
        story.policy.markets.reverse()
        await planned_again(api)
        assert api._controller.kernel.jobs["j-1"].shape.pool == "T4x1:spot"
        story.cloud.warn(node.id, 3600.0)
        await until(
            lambda: asyncio.sleep(0, [each.offer_id for each, _ in story.cloud.running()] == ["on-demand"]),
            "it does not go where the plan wants it",
        )

    living(story, scene)


def test_no_plan_of_the_next_controller_resizes_it_either_and_what_it_saves_then_counts(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(1)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_script(max_workers=2))
            await earning(api)
            api._controller.jobs.save_all_facts()
        story.policy.wide = 2
        async with story.controller() as api:
            await planned_again(api)
            assert api._controller.kernel.jobs["j-1"].shape.gpus == 1
            assert (await api.cost("j-1"))["usd_useful"] == 0
            story.cloud.see(saved_ago_s=0.0)
            assert (await api.cost("j-1"))["usd_useful"] >= 0.02
            await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 3), "it never grows")

    asyncio.run(live())


def test_its_owner_may_still_scale_it(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(4)

    async def scene(api):
        await api.submit(a_script(max_workers=1))
        await earning(api)
        await api.scale("j-1", low=2, high=2)
        await until(lambda: asyncio.sleep(0, len(story.cloud.running()) == 2), "it is nailed down")

    living(story, scene)


def test_one_that_had_two_workers_joins_its_group_at_one_too(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(2)

    async def scene(api):
        await api.submit(a_script(max_workers=2))
        await until(lambda: asyncio.sleep(0, len(story.cloud.running()) == 2), "it does not start")
        await api.scale("j-1", low=1, high=1)
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 3), "it does not shrink")
        last = story.cloud.orders[-1]
        assert (last.offers, last.env["RANK"], last.env["WORLD_SIZE"]) == (True, "0", "1")

    living(story, scene)


# ---------------------------------------------------------------------- what is said


def test_after_three_starts_of_which_nothing_was_seen_its_owner_is_told_what_to_do(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        for start in range(1, 5):
            await until(lambda start=start: asyncio.sleep(0, len(story.cloud.orders) == start), "it does not start")
            assert bool((await api.job("j-1"))["warnings"]) is (start == 4)
            assert ("SUBLET_CHECKPOINT_DIR" in story.cloud.orders[-1].note) is (start == 4)
            await earning(api)
            if start < 4:
                await start_over(api)
        (warning,) = (await api.job("j-1"))["warnings"]
        assert "nothing that it saved was seen" in warning
        assert "started over" not in warning
        assert api.record("j-1").starts_over == 0
        assert [text for text in await texts(api, "Alarm") if "SUBLET_CHECKPOINT_DIR" in text] == [warning]
        story.cloud.see(saved_ago_s=0.0)
        assert (await api.job("j-1"))["warnings"] == []

    living(story, scene)


def test_workers_that_never_meet_are_told_of_after_a_minute(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(2)
    began_s = WALL.monotonic()

    async def scene(api):
        await api.submit(a_script(min_workers=2, max_workers=2))
        await phase(api, "j-1", "running")
        record, tick = api.record("j-1"), api._controller.groups.attempts.check_apart
        story.cloud.see(met=False)
        tick(record, began_s + 60.0)
        assert (await api.job("j-1"))["warnings"] == []
        tick(record, WALL.monotonic() + 61.0)
        (warning,) = (await api.job("j-1"))["warnings"]
        assert "2 models" in warning
        await until(lambda: texts(api, "Alarm"), "no event says so")
        assert await texts(api, "Alarm") == [warning]

    living(story, scene)


def test_workers_that_meet_are_not_told_of(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(2)

    async def scene(api):
        await api.submit(a_script(min_workers=2, max_workers=2))
        await phase(api, "j-1", "running")
        story.cloud.see(met=True)
        api._controller.groups.attempts.check_apart(api.record("j-1"), WALL.monotonic() + 600.0)
        assert (await api.job("j-1"))["warnings"] == []

    living(story, scene)


def test_how_long_a_script_will_take_is_not_made_up(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script(work=100.0, samples_per_s=1.0))
        view = await phase(api, "j-1", "running")
        assert (view["eta_s"], view["forecast_usd"], view["progress"]) == (None, None, None)

    living(story, scene)


# ---------------------------------------------------------------------- whether there is something to resume


def told_to_resume(story):
    return [order.env["SUBLET_RESUME"] for order in story.cloud.orders]


def write(story, name, text):
    place = Path(story.cloud.orders[-1].env["SUBLET_CHECKPOINT_DIR"], "model")
    place.mkdir(exist_ok=True)
    (place / name).write_text(text)


def test_there_is_something_to_resume_once_it_has_saved_and_not_because_it_failed(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script(retries=Retries(user=5)))
        await phase(api, "j-1", "running")
        story.cloud.end_all(1, "boom")
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "no second start")
        await phase(api, "j-1", "running")
        await start_over(api)
        await phase(api, "j-1", "running")
        assert told_to_resume(story) == ["0", "0", "0"]
        write(story, "lock", "")
        await start_over(api)
        await phase(api, "j-1", "running")
        write(story, "last.pt", "weights")
        await start_over(api)
        await phase(api, "j-1", "running")
        assert told_to_resume(story)[3:] == ["0", "1"]

    living(story, scene)


def test_all_workers_of_a_start_are_told_alike_whether_to_resume(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(2)
    start = story.cloud._start

    def start_and_save(node, message):
        Path(message.env["SUBLET_CHECKPOINT_DIR"], "config.json").write_text("{}")
        start(node, message)

    story.cloud._start = start_and_save

    async def scene(api):
        await api.submit(a_script(min_workers=2, max_workers=2))
        await phase(api, "j-1", "running")
        await start_over(api)
        await phase(api, "j-1", "running")
        assert told_to_resume(story) == ["0", "0", "1", "1"]

    living(story, scene)


# ---------------------------------------------------------------------- ends


def test_two_copies_that_end_within_a_minute_are_told_of_and_nobody_knows_what_they_are_worth(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(2)

    async def live():
        async with story.controller() as api:
            await api.submit(a_script(min_workers=2, max_workers=2))
            await earning(api)
            story.cloud.see(met=False)
            api._controller.groups.attempts._running["j-1"].began_wall_s -= 30.0
            story.cloud.end_all(0)
            view = await phase(api, "j-1", "finished")
            (warning,) = view["warnings"]
            assert "they trained 2 models" in warning
            assert (view["usd_useful"], view["usd_unknown"] >= 0.02) == (0, True)
            await until(lambda: texts(api, "Alarm"), "no event says so")
            adds_up(api)
        async with story.controller() as api:
            view = await api.job("j-1")
            assert (view["usd_useful"], view["usd_unknown"] >= 0.02, view["warnings"]) == (0, True, [warning])

    asyncio.run(live())


def test_two_workers_that_met_or_that_nobody_looked_at_are_useful(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(2)

    async def scene(api):
        for job_id, met in (("j-1", True), ("j-2", False)):
            await api.submit(a_script(min_workers=2, max_workers=2))
            await earning(api, job_id=job_id)
            story.cloud.see(met=met)
            if met:
                api._controller.groups.attempts._running[job_id].began_wall_s -= 30.0
            story.cloud.end_all(0)
            view = await phase(api, job_id, "finished")
            assert (view["usd_useful"] >= 0.02, view["usd_unknown"], view["warnings"]) == (True, 0, [])

    living(story, scene)


def test_what_a_cancelled_script_was_for_is_unknown_where_nothing_was_seen(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await earning(api)
        await api.cancel("j-1")
        view = await phase(api, "j-1", "cancelled")
        assert (view["usd_useful"], view["usd_redone"], view["usd_unknown"] >= 0.02) == (0, 0, True)

    living(story, scene)


# ---------------------------------------------------------------------- words


def test_no_share_and_no_save_is_made_up_for_a_script_that_says_nothing(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await phase(api, "j-1", "running")
        story.cloud.end_all(-9)  # it starts again where it was
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "it does not start again")
        await phase(api, "j-1", "running")
        await api.pause("j-1")
        await phase(api, "j-1", "paused")
        await until(lambda: texts(api, "JobStopped"), "no event says so")
        assert await texts(api, "JobStarted") == ["trains"]
        assert await texts(api, "StopJob") == ["leave"]
        assert await texts(api, "JobStopped") == ["stopped"]
        assert not any("% done" in event["text"] for event in await api.events())

    living(story, scene)


def test_a_start_at_the_same_width_is_no_new_size(tmp_path):
    story = Scene(tmp_path)
    story.policy = Widths(1)

    async def scene(api):
        await saved_once(story, api, max_workers=2)
        told = await texts(api, "JobResized") + await texts(api, "JobStarted")
        assert set(told) <= {"trains", "trains again"}
        story.policy.wide = 2
        story.cloud.see(saved_ago_s=0.0)
        await planned_again(api)
        await until(lambda: asyncio.sleep(0, len(story.cloud.running()) == 2), "it never grows")
        await phase(api, "j-1", "running")

        async def resized():
            return "trains in its new size" in await texts(api, "JobResized")

        await until(resized, "no event says so")

    living(story, scene)


# ---------------------------------------------------------------------- a session all the same


def test_a_script_that_opens_a_session_is_started_again_as_one_and_stays_so(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script())
        await phase(api, "j-1", "running")
        story.cloud.hear(wire.Ready)
        await until(lambda: asyncio.sleep(0, len(story.cloud.orders) == 2), "it does not start again")
        before, after = story.cloud.orders
        assert (before.watch, after.watch) == (True, False)
        assert after.env["WORLD_SIZE"] == "1"
        assert len(await texts(api, "Session")) == 1

    living(story, scene)
    store = Store(story.folder / "log.sqlite")
    ((_, spec, _),) = store.jobs()
    store.close()
    assert json.loads(spec)["sdk"], "a later controller knows it"


def test_a_job_that_can_have_no_session_fails_with_that(tmp_path):
    story = Scene(tmp_path)

    async def scene(api):
        await api.submit(a_script(per_node=1))
        await phase(api, "j-1", "running")
        story.cloud.hear(wire.Ready)
        view = await phase(api, "j-1", "failed")
        assert "it opens a session" in view["error"]

    living(story, scene)
