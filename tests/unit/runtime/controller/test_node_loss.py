"""What a job does that loses a node: go on, wait for another, start again, or fail, as its owner chose."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from sublet.domain.budget import Limit
from sublet.domain.events import JobStopped
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet.runtime.clock import Clock
from sublet.runtime.controller.memory.records import JobRecord
from sublet.runtime.controller.memory.table import JobTable
from sublet.runtime.controller.watch.history import Progress
from sublet.runtime.jobs.bounds import OnNodeLoss
from sublet_lab.memory_cloud import MemoryCloud, Training, one_gpu_offer
from tests.rigs.story import Story, a_spec, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
BOOT_S = 600.0  # a new node takes its time: survivors who may go on do


def a_story(folder, *, most_nodes=4):
    story = Story(folder, limits={"spot": Limit(max_nodes=most_nodes)})
    story.cloud = MemoryCloud([one_gpu_offer("spot", boot_s=BOOT_S)], Clock(speedup=60.0))
    story.cloud.jobs["j-1"] = Training(steps=1_000_000)
    return story


def a_job(choice, **facts):
    return a_spec(on_node_loss=OnNodeLoss(choice), max_workers=2, **facts)


async def on_two_nodes(api):
    """Its nodes, once it trains there."""

    async def may_be_several():
        view = await api.job("j-1")
        return view["node_ids"] if view["workers"] == len(view["node_ids"]) == 2 else None

    nodes = await until(may_be_several, "never on two nodes")
    await trained(api, "j-1", (await api.job("j-1"))["step"] + 5)
    return nodes


async def told(api, kind):
    async def rows():
        return [row["text"] for row in await api.events() if row["kind"] == kind]

    return await until(rows, f"no {kind} was told")


def lines(story):
    """Of its log, each an event and the orders that followed."""
    return [json.loads(line) for line in story.log()[1:]]


def widths(story):
    """Of the orders to resize."""
    orders = [action for line in lines(story) for action in line["actions"] if action["type"] == "ResizeJob"]
    return [sum(gpus for _, gpus in order["placement"]) for order in orders]


def workers_of(api):
    return set(api._controller.records["j-1"].group.workers)


def test_survivors_go_on_without_being_asked_to_wait(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_job("continue"))
            story.cloud.take((await on_two_nodes(api))[0])
            await on_two_nodes(api)
            assert (await api.job("j-1"))["steps_lost"] == 0

    asyncio.run(live())
    assert 1 in widths(story)
    check(replay(story.log()))


def test_survivors_wait_for_another_node_and_train_at_no_other_width(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_job("replace"))
            lost = (await on_two_nodes(api))[0]
            before = workers_of(api)
            story.cloud.take(lost)
            assert lost in (await told(api, "AwaitsNode"))[0]
            assert lost not in await on_two_nodes(api)
            assert before & workers_of(api), "the survivor was not kept"
            record = api._controller.records["j-1"]
            assert record.awaited is None
            assert (await api.job("j-1"))["on_node_loss"] == "replace"

    asyncio.run(live())
    assert widths(story) == [2]
    check(replay(story.log()))


def test_survivors_go_on_when_no_other_node_has_come_in_time(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_job("replace", replace_s=90.0))
            lost = (await on_two_nodes(api))[0]
            story.cloud.sold_out.add("spot")
            story.cloud.take(lost)
            view = await phase(api, "j-1", "recovering", "queued", "starting")
            explained = await api.explain("j-1")
            if view["phase"] == "recovering":
                assert "2 workers again" in view["reason"]
                assert any("on_node_loss: replace" in note for note in explained["notes"])
            rows = await until(lambda: told(api, "AwaitsNode"), "nothing was told")
            await until(lambda: asyncio.sleep(0, api._controller.records["j-1"].awaited is None), "it waits for ever")
            rows = await told(api, "AwaitsNode")
            assert "2 workers could not be had again in time" in rows[-1]
            story.cloud.sold_out.clear()
            await trained(api, "j-1", (await api.job("j-1"))["step"] + 5)

    asyncio.run(live())
    check(replay(story.log()))


def test_a_wait_for_a_node_goes_on_after_a_restart_of_the_controller(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_job("replace", replace_s=100_000.0))
            lost = (await on_two_nodes(api))[0]
            story.cloud.sold_out.add("spot")
            story.cloud.take(lost)
            await told(api, "AwaitsNode")
            api._controller.jobs.save_all_facts()
            awaited = api._controller.records["j-1"].awaited
            assert awaited is not None
        async with story.controller() as api:
            assert api._controller.records["j-1"].awaited == awaited
            state = api._controller.kernel.jobs["j-1"]
            assert (state.job.min_gpus, state.job.max_gpus) == (2, 2)
            await api.scale("j-1", low=1, high=2)  # its owner will not wait
            assert api._controller.records["j-1"].awaited is None
            assert api._controller.kernel.jobs["j-1"].job.min_gpus == 1

    asyncio.run(live())


def test_all_workers_start_again_from_the_last_checkpoint(tmp_path):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_job("restart"))
            lost = (await on_two_nodes(api))[0]
            before, saved = workers_of(api), story.cloud.jobs["j-1"].saved
            story.cloud.take(lost)
            await until(lambda: asyncio.sleep(0, not before & workers_of(api)), "a survivor was kept")
            await on_two_nodes(api)
            view = await api.job("j-1")
            assert view["steps_lost"] > 0
            assert story.cloud.jobs["j-1"].saved >= saved

    asyncio.run(live())
    check(replay(story.log()))


@pytest.mark.parametrize("sdk", [True, False])
def test_a_job_fails_at_once_and_can_be_resumed(tmp_path, sdk):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_job("fail", sdk=sdk))
            await until(lambda: asyncio.sleep(0, len(workers_of(api)) == 2), "never on two nodes")
            await phase(api, "j-1", "running")
            (lost, _) = (await api.job("j-1"))["node_ids"]
            story.cloud.take(lost)
            view = await phase(api, "j-1", "failed")
            assert f"it lost {lost}, and its elastic.on_node_loss is fail" in view["error"]
            await until(lambda: asyncio.sleep(0, not story.cloud.nodes), "nodes are kept for nothing")
            await api.resume("j-1")
            await phase(api, "j-1", "running")
            assert (await api.job("j-1"))["error"] == ""

    asyncio.run(live())
    check(replay(story.log()))


@pytest.mark.parametrize("max_workers", [1, 2])
def test_no_node_is_rented_for_a_job_that_fails_of_a_loss(tmp_path, max_workers):
    """Whoever hears of the loss first would rent another in its place, and pay for it until the job is given up."""
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(on_node_loss=OnNodeLoss.FAIL, max_workers=max_workers))
            await until(lambda: asyncio.sleep(0, len(workers_of(api)) == max_workers), "never on all its nodes")
            await phase(api, "j-1", "running")
            story.cloud.take(api._controller.kernel.tenancy.placement["j-1"][0][0])
            await phase(api, "j-1", "failed")
            (text,) = await told(api, "GivenUp")
            assert text.startswith("saves and leaves: it lost" if max_workers > 1 else "leaves: it lost")

    asyncio.run(live())
    orders = next(line["actions"] for line in lines(story) if line["event"]["type"] == "NodeLost")
    assert "RentNode" not in [order["type"] for order in orders]  # a plan that was being made may want what it saw
    check(replay(story.log()))


@pytest.mark.parametrize("choice", [*OnNodeLoss])
def test_a_node_that_is_left_in_time_is_not_lost(tmp_path, choice):
    story = a_story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.submit(a_job(choice))
            lost = (await on_two_nodes(api))[0]
            story.cloud.warn(lost, 600.0)

            async def left():
                group = api._controller.records["j-1"].group
                return group.training and all(worker.node_id != lost for worker in group.workers.values())

            await until(left, "it stays on a node that goes")
            if lost in story.cloud.nodes:
                story.cloud.take(lost)
            await on_two_nodes(api)
            view = await api.job("j-1")
            assert (view["steps_lost"], view["error"]) == (0, "")
            assert api._controller.records["j-1"].awaited is None

    asyncio.run(live())


@pytest.mark.parametrize(
    ("blamed", "saved", "text"),
    [
        ("it lost n1", 600, "stopped, and no worker was left to save; kept is the checkpoint of step 600"),
        ("it lost n1", None, "stopped, and no worker was left to save; kept is nothing"),
        ("it lost n1", 620, "stopped and saved, 16.1% done"),
        ("", 600, "stopped and saved, 16.1% done"),
    ],
)
def test_where_nobody_was_left_to_save_it_is_told_what_is_kept(blamed, saved, text):
    table, group = JobTable(), SimpleNamespace(step=620, workers={})
    table.records["j-1"] = JobRecord(
        id="j-1", spec=a_job("fail"), group=group, submitted_s=0.0, blamed=blamed, checkpoint_step=saved
    )
    assert Progress(table.has_session, table.kept).stopped(JobStopped(1.0, "j-1", 1, 0.161)) == text
