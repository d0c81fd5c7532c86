"""What is saved at a notice, and how often where nothing is known of a market."""

from __future__ import annotations

import asyncio

import pytest

from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller.nodes.notices import can_save
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud, Worker, one_gpu_offer
from tests.rigs.groups import joined, sent, training
from tests.rigs.story import Story, a_spec, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
LIMITS = {"spot": Limit(max_nodes=4), "on-demand": Limit(max_nodes=4)}

LONG_S = 100_000.0  # of the cloud: longer than any test


class Recorder(MemoryCloud):
    """Remembers who was told to save, and how often workers were told to."""

    def __init__(self, offers, clock):
        super().__init__(offers, clock)
        self.saves, self.every_s = [], []

    def _arrive(self, node_id, message):
        if isinstance(message, wire.SaveNow):
            self.saves.append(message.worker_id)
        if isinstance(message, wire.StartWorker):
            self.every_s.append(float(message.env["SUBLET_CHECKPOINT_EVERY_S"]))
        super()._arrive(node_id, message)


def a_story(folder, market, **facts):
    story = Story(folder, limits={market: Limit(max_nodes=4)})
    story.cloud = Recorder((one_gpu_offer(market, 0.5, wind_down_s=120.0, **facts),), Clock(speedup=60.0))
    return story


async def noticed(story, width, write_s=0.0):
    """A job of this width trains, and one of its nodes is noticed, for a minute on the wall; is it told to save?"""
    async with story.controller() as api:
        await api.submit(a_spec(min_workers=width, max_workers=width))
        await phase(api, "j-1", "running")
        await trained(api, "j-1", 5)
        node_id = next(iter(story.cloud.nodes))
        api._controller.table.records["j-1"].write_s = write_s
        story.cloud.warn(node_id, 3600.0)
        for _ in range(5):
            await asyncio.sleep(0)  # the kernel hears of it, and orders are on their way
        assert (await api.job("j-1"))["preemptions_noticed"] == 1
        told = [event["text"] for event in await api.events() if event["kind"] == "NotSaved"]
        assert bool(story.cloud.saves) or not write_s or "took 61.0 s" in told[0]
        return len(story.cloud.saves)


@pytest.mark.parametrize(("market", "width", "saves"), [("spot", 3, 1), ("on-demand", 2, 1), ("on-demand", 3, 0)])
def test_a_notice_makes_a_job_save_unless_two_nodes_stay_that_the_cloud_does_not_take(tmp_path, market, width, saves):
    assert asyncio.run(noticed(a_story(tmp_path, market), width)) == saves


@pytest.mark.parametrize(("width", "write_s", "saves"), [(1, 59.0, 1), (1, 61.0, 0), (2, 61.0, 1)])
def test_what_cannot_be_written_before_the_last_node_goes_is_not_begun_and_that_is_told(
    tmp_path, width, write_s, saves
):
    assert asyncio.run(noticed(a_story(tmp_path, "spot"), width, write_s)) == saves


def test_the_last_node_that_goes_says_how_long_there_is_to_write():
    assert can_save(["a", "b"], {"a": 5.0, "b": 30.0}, 30.0)
    assert not can_save(["a", "b"], {"a": 30.0, "b": 5.0}, 31.0)


class SlowStart(MemoryCloud):
    """Scripts that need longer to import than a notice lasts, but on the first nodes."""

    quick, late, left = 1, (), ()

    def _start(self, node, message):
        if len(self.rented) <= self.quick:
            super()._start(node, message)
        elif message.worker_id not in node.workers:
            worker = Worker(message.worker_id, message.job_id, node.id)
            node.workers[worker.id] = worker
            self.late = (*self.late, worker)

    def _arrive(self, node_id, message):
        if isinstance(message, wire.Leave):
            self.left = (*self.left, node_id)
        super()._arrive(node_id, message)

    def imported(self):
        for worker in self.late:
            if worker.node_id in self.nodes:
                self._word(worker.node_id, wire.Ready(worker_id=worker.id))


def test_a_start_that_takes_longer_than_the_notice_costs_no_step(tmp_path):
    """Seen: saved at the notice, trained on until the node was taken, and all in between was lost."""
    story = Story(tmp_path, limits={"spot": Limit(max_nodes=4)})
    cloud = story.cloud = SlowStart((one_gpu_offer("spot"),), Clock(speedup=60.0))

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=1))
            await trained(api, "j-1", 5)
            (node_id,) = cloud.nodes
            cloud.warn(node_id, LONG_S)
            await until(asyncify(lambda: cloud.late), "nobody is to take over")
            api._controller.nodes.notices._evacuate(node_id)
            await until(asyncify(lambda: node_id in cloud.left), "it stays until the end")
            await until(asyncify(lambda: not cloud.nodes[node_id].workers), "it saves and leaves")
            cloud.take(node_id)
            cloud.imported()
            await trained(api, "j-1", cloud.jobs["j-1"].saved + 5)
            assert (await api.job("j-1"))["steps_lost"] == 0

    asyncio.run(live())


def asyncify(condition):
    async def reached():
        return condition()

    return reached


def test_a_group_is_told_to_leave_until_the_node_is_gone_and_which_nodes_go_with_it(tmp_path):
    """One that was just forming does not hear it the first time."""
    story = Story(tmp_path, limits={"spot": Limit(max_nodes=6)})
    story.cloud = SlowStart((one_gpu_offer("spot"),), Clock(speedup=60.0))
    story.cloud.quick = 3

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(min_workers=3, max_workers=3))
            await phase(api, "j-1", "running")
            told, controller = [], api._controller
            group = api._controller.table.records["j-1"].group
            group.evacuate = lambda node_id, wall_s, others: told.append((node_id, {*others}))
            first, second, third = story.cloud.nodes
            story.cloud.warn(first, LONG_S)
            story.cloud.warn(second, LONG_S + 1.0)
            story.cloud.warn(third, 10 * LONG_S)
            await until(asyncify(lambda: len(controller.context.nodes.doomed_s) == 3), "all are noticed")
            controller.nodes.notices._evacuate(first)
            await until(asyncify(lambda: len(told) >= 3), told)
            assert told[:3] == [(first, {first, second})] * 3, "the third will be there for long"
            story.cloud.take(first)
            await until(asyncify(lambda: first in controller.context.nodes.gone), "it is gone")
            told.clear()
            controller.nodes.notices._evacuate(first)
            assert told == []
            await api.cancel("j-1", now=True)

    asyncio.run(live())


def test_a_save_that_a_new_group_cuts_off_is_asked_of_its_rank_0():
    group = training("a", "b")
    group.save_now()
    ((node, _),) = sent(group, wire.SaveNow)
    assert node == "a"
    group.evacuate("a", 3.0)
    sent(group, wire.Regroup)
    joined(group, 11, 4.0)
    ((node, again),) = sent(group, wire.SaveNow)
    assert node == "b"
    facts = {"seconds": 0.1, "blocked_s": 0.0, "size_bytes": 1}
    group.hear(wire.Saved(worker_id=again.worker_id, step=11, done=11.0, **facts), 5.0)
    group.move(2, (("b", 1), ("c", 1)), 0, 6.0)
    assert sent(group, wire.SaveNow) == []


def test_what_was_being_written_at_the_ask_does_not_answer_it():
    group = training("a", "b")
    facts = {"done": 9.0, "seconds": 0.1, "blocked_s": 0.0, "size_bytes": 1}
    group.save_now()
    ((_, asked),) = sent(group, wire.SaveNow)
    group.hear(wire.Saved(worker_id=asked.worker_id, step=group.step - 1, **facts), 2.0)
    group.evacuate("a", 3.0)
    sent(group, wire.Regroup)
    joined(group, 11, 4.0)
    assert [node for node, _ in sent(group, wire.SaveNow)] == ["b"]


@pytest.mark.parametrize(("market", "low_s", "high_s"), [("spot", 1.0, 60.0), ("on-demand", 10.0, 600.0)])
def test_a_market_of_which_nothing_is_known_is_not_taken_to_last_for_ever(tmp_path, market, low_s, high_s):
    story = a_story(tmp_path, market)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            await phase(api, "j-1", "running")
        return story.cloud.every_s[0]

    assert low_s <= asyncio.run(live()) < high_s


def test_whoever_has_seen_more_losses_than_were_said_saves_more_often(tmp_path):
    story = a_story(tmp_path, "spot", hazard_per_h=0.5)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec())
            for losses in range(4):
                if losses:
                    story.cloud.take(next(iter(story.cloud.nodes)))

                async def started(times=losses + 1):
                    return len(story.cloud.every_s) >= times

                await until(started, "it never started again")
                await phase(api, "j-1", "running")
        return story.cloud.every_s

    first, *_, last = asyncio.run(live())
    assert last < 0.9 * first
