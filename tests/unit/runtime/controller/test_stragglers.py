"""A worker that keeps its group waiting is told of, and its node replaced where that is cheaper: a real controller."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller.host import PACES, Paces
from sublet.runtime.controller.jobs.stragglers import Stragglers
from sublet.runtime.controller.memory.records import Replacements
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud, Training, one_gpu_offer
from tests.rigs.story import Story, a_spec, phase, trained, until

BRISK = Paces(straggles_s=0.3)
SPEEDUP = 600.0


class Limping(MemoryCloud):
    """All ranks say what their own part of a step takes, and those on a slow node take `factor` times as long."""

    slow, factor, old_sdk, plain = frozenset(), 6.0, False, False
    slow_rank = None  # what the script itself does more of there

    def _limps(self, member):
        return member.node_id in self.slow or member.order.rank == self.slow_rank

    def _advance(self, training, generation, members, passed_s):
        limps = any(self._limps(member) for member in members.values())
        self.plain = True
        super()._advance(training, generation, members, passed_s / (self.factor if limps else 1.0))
        self.plain = False
        own_s = training.step_s / len(members)
        step_s = own_s * (self.factor if limps else 1.0)
        for member in members.values():
            if self.old_sdk and member.order.rank != 0:
                continue
            waits_s = step_s - own_s * (self.factor if self._limps(member) else 1.0)
            self._word(
                member.node_id,
                wire.Stepped(
                    worker_id=member.id,
                    generation=generation,
                    step=member.step,
                    done=float(member.step),
                    epoch=0,
                    loss=1.0,
                    step_s=step_s,
                    comm_s=waits_s,
                    global_batch=1,
                ),
            )

    def _word(self, node_id, message):
        if not (self.plain and isinstance(message, wire.Stepped)):  # what it says of its own is not of all ranks
            super()._word(node_id, message)


def a_story(folder, *, boot_s=0.0, old_sdk=False):
    story = Story(folder, limits={"spot": Limit(max_nodes=4)}, paces=BRISK)
    story.cloud = Limping((one_gpu_offer("spot", 0.5, wind_down_s=120.0, boot_s=boot_s),), Clock(speedup=SPEEDUP))
    story.cloud.old_sdk = old_sdk
    story.cloud.jobs["j-1"] = Training(steps=400_000, step_s=0.02)
    return story


@asynccontextmanager
async def limp(story, width=3):
    """A job of this width trains, then the last of its nodes begins to limp."""
    async with story.controller() as api:
        await api.submit(a_spec(min_workers=width, max_workers=width))
        await phase(api, "j-1", "running")
        await trained(api, "j-1", 20)
        group = api._controller.records["j-1"].group
        before = set(story.cloud.nodes)
        slow = next(worker.node_id for worker in group.workers.values() if worker.rank == width - 1)
        story.cloud.slow = frozenset({slow})

        async def warned():
            return [text for text in (await api.job("j-1"))["warnings"] if "as long as" in text]

        (text,) = await until(warned, "nobody was told")
        yield api, slow, before, text


def test_with_much_left_the_slow_node_is_replaced_and_nobody_stops(tmp_path):
    async def live():
        async with limp(a_story(tmp_path)) as (api, slow, before, text):
            assert slow in text
            assert "another node saves" in text
            assert (await api.metrics())["alarms"]["straggler"] >= 1

            async def replaced():
                view = await api.job("j-1")
                return slow not in {n["id"] for n in await api.nodes()} and view["phase"] == "running" and view

            view = await until(replaced, "it was not replaced")
            assert view["workers"] == 3
            assert view["preemptions_noticed"] == view["preemptions_unnoticed"] == 0
            nodes = {node["id"] for node in await api.nodes()}
            assert before - {slow} <= nodes  # the others stayed

            async def calm():
                return not (await api.job("j-1"))["warnings"]

            await until(calm, "it is still told of a straggler")

    asyncio.run(live())


def test_where_another_node_comes_too_late_to_pay_it_is_told_of_and_stays(tmp_path):
    async def live():
        async with limp(a_story(tmp_path, boot_s=1e9)) as (api, slow, _, text):
            assert "it stays" in text
            assert "more than it saves" in text
            for _ in range(20):
                await asyncio.sleep(0.02)
            assert slow in {node["id"] for node in await api.nodes()}

    asyncio.run(live())


def test_with_an_old_sdk_it_is_seen_that_all_have_become_slow(tmp_path):
    async def live():
        async with limp(a_story(tmp_path, old_sdk=True)) as (api, slow, _, text):
            assert "no worker stands out" in text
            assert slow in {node["id"] for node in await api.nodes()}
            assert (await api.metrics())["alarms"]["straggler"] == 1

    asyncio.run(live())


def test_a_group_in_step_is_not_told_of(tmp_path):
    async def live():
        story = a_story(tmp_path)
        async with story.controller() as api:
            await api.submit(a_spec(min_workers=2, max_workers=2))
            await phase(api, "j-1", "running")
            await trained(api, "j-1", 200)
            assert (await api.job("j-1"))["warnings"] == []
            assert "straggler" not in (await api.metrics())["alarms"]

    asyncio.run(live())


SCRIPT = "the script's own work"


async def stragglers_told(api):
    return [row["text"] for row in await api.events() if "as its peers" in row["text"] and row["kind"] == "Alarm"]


def test_a_script_whose_own_work_is_uneven_has_one_node_replaced_and_no_more(tmp_path):
    async def live():
        story = a_story(tmp_path)
        story.cloud.slow_rank = 0

        async def warned(api):
            return any(SCRIPT in text for text in (await api.job("j-1"))["warnings"])

        async with story.controller(crash=True) as api:
            await api.submit(a_spec(min_workers=3, max_workers=3))
            await until(lambda: warned(api), "it was not seen that it is the script")

            async def told_twice():  # the second is written with the next commit
                told = await stragglers_told(api)
                return len(told) > 1 and told

            first, second = await until(told_twice, "the second was not told")
            assert "another node saves" in first
            assert SCRIPT in second
        async with story.controller() as api:
            assert api._controller.records["j-1"].replacements.in_vain, "it was forgotten"

    asyncio.run(live())


def replaced(rank=0, node_id="n1", times=10.0, group=("n1", "n2", "n3")):
    replacements = Replacements()
    replacements.add(rank, node_id, times, group)
    return replacements


@pytest.mark.parametrize(
    ("rank", "node_id", "times", "nothing"),
    [
        (0, "n4", 10.0, True),
        (0, "n2", 8.1, True),  # the ranks have moved on
        (2, "n4", 12.0, True),  # the new node, whatever its rank
        (0, "n4", 5.0, False),
        (2, "n4", 5.0, False),
        (1, "n2", 10.0, False),  # another one beside it
        (0, "n1", 10.0, False),  # the other one still boots
    ],
)
def test_a_replacement_brought_nothing_if_it_is_as_slow_again(rank, node_id, times, nothing):
    replacements = Replacements.from_facts(json.loads(json.dumps(replaced().facts())))
    assert replacements == replaced()
    assert replacements.brought_nothing(rank, node_id, times) is nothing
    assert not Replacements().brought_nothing(rank, node_id, times)


@pytest.mark.parametrize(("nodes", "gpus", "slow"), [(2, 1, 1), (2, 2, 1), (2, 8, 1), (5, 1, 2), (5, 2, 2), (8, 4, 3)])
def test_slow_nodes_are_told_of_though_they_and_their_workers_take_turns_at_being_the_slowest(nodes, gpus, slow):
    """Two minutes in which the first nodes are four times as slow; what each rank needs varies by 2 %."""
    ranks = [(rank, f"n{rank // gpus}") for rank in range(nodes * gpus)]
    are_slow = {f"n{node}" for node in range(slow)}
    workers = {f"w{rank}": SimpleNamespace(id=f"w{rank}", rank=rank, node_id=node) for rank, node in ranks}
    group = SimpleNamespace(workers=workers, round=SimpleNamespace(number=1))
    record = SimpleNamespace(id="j-1", group=group, warnings={})
    inbox = SimpleNamespace(kernel=SimpleNamespace(jobs={}))
    host = SimpleNamespace(clock=None, paces=PACES)
    stragglers = Stragglers(SimpleNamespace(inbox=inbox, bill=None, alarms=None, host=host), None)
    told, rng = [], random.Random(gpus)
    stragglers._tell = lambda _record, found, _message: told.append((second, workers[found.worker_id].node_id))
    for second in range(120):
        own_s = {w.id: (1.0 if w.node_id in are_slow else 0.25) * rng.gauss(1.0, 0.02) for w in workers.values()}
        step_s = max(own_s.values())
        for worker_id, seconds in own_s.items():
            said = {"step": second, "done": float(second), "epoch": 0, "loss": 1.0, "global_batch": 8}
            message = wire.Stepped(worker_id=worker_id, generation=1, step_s=step_s, comm_s=step_s - seconds, **said)
            stragglers.compare(record, message, float(second))
    assert {node_id for _, node_id in told} == are_slow
    assert len(told) == slow
    assert told[0][0] <= 2 * PACES.straggles_s
