"""Jobs that are cut, under a live controller: which grid, what losses do to it, what is learned and told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest

from sublet import plugins
from sublet.domain.actions import ResizeJob, StartJob
from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.plan import Phase
from sublet.domain.shape import Grid
from sublet.kernel.invariants import check
from sublet.perf.gridded import Gridded, LivePauses
from sublet.perf.live_grids import LiveGrids
from sublet.policies.liveput.policy import Liveput
from sublet.runtime.clock import Clock
from sublet.runtime.controller.jobs.forms import own_grid
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.story import OFFERS, Story, a_spec, phase, trained, until

pytestmark = pytest.mark.usefixtures("virtual_time")
BLOCKS = (12_000_000,) * 8
LIMITS = {"spot": Limit(max_nodes=6), "on-demand": Limit(max_nodes=0)}


def places(api, job_id):
    """Of the members, by node."""
    group = api._controller.records[job_id].group
    return {worker.node_id: worker.place for worker in group.workers.values() if worker.place is not None}


async def settled(api, job_id, grid):
    async def reached():
        group = api._controller.records[job_id].group
        return group.training and group.places.formed == grid and not group.broken

    await until(reached, f"{job_id} never was {grid}")


@pytest.mark.parametrize("policy", ["liveput", "price", "max-speedup"])
def test_a_job_of_three_stages_trains_as_copies_of_three_and_outlives_losses(tmp_path, policy):
    story = Story(tmp_path, policy=policy, limits=LIMITS)

    async def live():
        async with story.controller() as api:
            story.cloud.jobs["j-1"] = training = Training(steps=1_000_000, blocks=BLOCKS)
            await api.submit(a_spec(stages=3, max_workers=6))
            await settled(api, "j-1", Grid(2, 3))
            assert (await api.job("j-1"))["shape"] == "6 x T4x1:spot, 2 x 3"
            seated = places(api, "j-1")
            assert Counter(seated.values()) == Counter((copy, part) for copy in range(2) for part in range(3))
            await trained(api, "j-1", 200)
            story.cloud.sold_out.add("spot")
            lost = next(node for node, place in seated.items() if place == (1, 1))
            story.cloud.take(lost)
            await settled(api, "j-1", Grid(1, 3))
            left = places(api, "j-1")
            assert set(left.values()) == {(0, 0), (0, 1), (0, 2)}
            assert "1 x 3, 2 spare" in (await api.job("j-1"))["shape"] or policy != "liveput"
            step = (await api.job("j-1"))["step"]
            await trained(api, "j-1", step + 100)
            story.cloud.sold_out.clear()
            await settled(api, "j-1", Grid(2, 3))
            assert training.restored == 0, "no part was lost"
            check(api._controller.kernel)

            async def both():  # a group is in its grid before the history is written
                texts = [event["text"] for event in await api.events() if event["kind"] == "Moved"]
                return texts if len(texts) > 1 else None

            moved = await until(both, "the history has no two moves")
            fewer, more = moved
            assert more == "is 2 x 3 (between): 32.0 MB at most to one, 0.01 s", "a third of the blocks"
            if policy == "liveput":  # others give nodes back, and not those whose workers have nothing to give
                assert fewer == "is 1 x 3 (within): 0.0 MB at most to one, 0.01 s", "what a keeper lacks comes later"
            view = await api.job("j-1")
            told = [text.partition("(")[2].partition(")")[0] for text in moved]
            assert {move["kind"]: move["count"] for move in view["moves"]} == Counter(told)
            assert (view["grid"], view["spares"]) == ("2 x 3", 0)
            assert (await api.cost())["moves"] == view["moves"]
            grids = without_repeats([each["grid"] for each in await api.events("j-1") if each["workers"]])
            assert [grid for grid in grids if grid] == ["2 x 3", "1 x 3", "2 x 3"], "as the timeline shows it"
            (note,) = [note for note in (await api.explain("j-1"))["notes"] if note.startswith("it trains as")]
            assert note.startswith("it trains as 2 x 3 (copies x parts), with 0 spare; its grid has changed: ")
            for move in view["moves"]:
                size, seconds = move["size_bytes"] / 1e6, move["seconds"]
                assert f"{move['kind']} {move['count']} ({size:.1f} MB, {seconds:.2f} s)" in note

    asyncio.run(live())


def test_what_each_grid_did_is_learned_and_outlives_the_controller(tmp_path):
    story = Story(tmp_path, policy="liveput", limits=LIMITS)

    async def live():
        async with story.controller(crash=True) as api:
            story.cloud.jobs["j-1"] = Training(steps=1_000_000, blocks=BLOCKS)
            await api.submit(a_spec(stages=3, max_workers=6))
            await settled(api, "j-1", Grid(2, 3))

            async def learned():
                return api._controller.records["j-1"].grids.facts()["rates"]

            ((gpu, copies, parts, rate),) = await until(learned, "nothing was learned")
            assert (gpu, copies, parts) == ("T4", 2, 3)
            assert rate == pytest.approx(1 / (0.05 / (6 * 32 / 36) + 0.001), rel=0.01)
            seated = places(api, "j-1")
            api._controller.jobs.save_facts(api._controller.records["j-1"])
        async with story.controller() as api:
            record = api._controller.records["j-1"]
            assert json.loads(json.dumps(record.grids.facts()))["blocks"] == list(BLOCKS)
            await phase(api, "j-1", "running")
            await settled(api, "j-1", Grid(2, 3))
            assert places(api, "j-1") == seated, "nobody had to move"

    asyncio.run(live())


def test_a_script_without_blocks_is_given_up_in_words(tmp_path):
    story = Story(tmp_path, limits=LIMITS)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(stages=3, max_workers=6))
            view = await phase(api, "j-1", "failed")
            assert "its model has 0 blocks for 3 stages; next: train.Stages" in view["error"]

    asyncio.run(live())


def without_repeats(grids):
    return [grid for at, grid in enumerate(grids) if at == 0 or grid != grids[at - 1]]


def test_the_simulator_and_the_controller_give_the_same_grids_for_the_same_losses(tmp_path):
    story = Story(tmp_path, policy="liveput", limits=LIMITS)

    async def live():
        async with story.controller() as api:
            story.cloud.jobs["j-1"] = Training(steps=1_000_000, blocks=BLOCKS)
            await api.submit(a_spec(stages=3, max_workers=6))
            await settled(api, "j-1", Grid(2, 3))
            job = api._controller.kernel.jobs["j-1"].job
            story.cloud.sold_out.add("spot")
            story.cloud.take(next(iter(story.cloud.nodes)))
            await settled(api, "j-1", Grid(1, 3))
            await trained(api, "j-1", (await api.job("j-1"))["step"] + 100)
            story.cloud.sold_out.clear()
            await settled(api, "j-1", Grid(2, 3))
        return job

    job = asyncio.run(live())
    orders = [order for line in story.log()[1:] for order in json.loads(line)["actions"]]
    grids = [order["shape"]["grid"] for order in orders if order["type"] in ("StartJob", "ResizeJob")]
    told = without_repeats([Grid(**{name: grid[name] for name in ("copies", "parts")}) for grid in grids])
    market = [AvailabilityChanged(at_s, "spot", nodes) for at_s, nodes in [(0.0, 6), (3600.0, 5), (7200.0, 6)]]
    simulated = []

    def watch(_, actions):
        simulated.extend(order.shape.grid for order in actions if isinstance(order, StartJob | ResizeJob))

    endless = replace(job, submit_s=0.0, work=float("inf"), pools=())
    simulate([endless], Liveput(), Cloud(offers=OFFERS[:1], market=lambda: market), watch=watch, until_s=4 * 3600.0)
    assert told == [Grid(2, 3), Grid(1, 3), Grid(2, 3)]
    assert without_repeats(simulated) == told


@pytest.mark.parametrize("policy", plugins.names("sublet.policies"))
def test_under_every_policy_each_part_of_a_cut_model_has_a_worker(policy):
    """One that plans no grids gives GPUs, and the job is the fastest grid that it knows of them."""
    known = LiveGrids(most_gpus=7, depths=(3,), guess=1e-5).profile()
    driver = Driver([an_offer("o", gpus=1, pool="p")])
    driver.tell(AvailabilityChanged(0.0, "o", 4))
    job = a_job("g", work=1.0, speed=Gridded(known), pauses=LivePauses(known), gpus=7, min_gpus=3, max_gpus=7)
    driver.submit(job)
    driver.settle(plugins.load("sublet.policies", policy)())
    state = driver.kernel.jobs["g"]
    assert state.phase is Phase.RUNNING
    assert (state.shape.grid or own_grid(job, state.gpus, 3)) == Grid(1, 3)


def test_a_job_of_three_parts_is_never_ordered_in_one():
    """Of four workers, which its owner does not let be a grid of three and a spare, three train."""
    known = LiveGrids(most_gpus=6, depths=(3,), guess=1e-5, sizes=(4, 6)).profile()
    job = a_job("g", work=1.0, speed=Gridded(known), gpus=6, min_gpus=4, max_gpus=6)
    assert [own_grid(job, gpus, 3) for gpus in (4, 5, 6)] == [Grid(1, 3), Grid(1, 3), Grid(2, 3)]


def test_a_model_that_does_not_fit_is_cut_into_as_few_parts_as_do(tmp_path):
    """By the first session, before a step is tried; the next controller knows it."""
    story = Story(tmp_path, policy="liveput", limits=LIMITS)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000, blocks=BLOCKS, device_bytes=79_000_000)  # 96 uncut, 2 x 24 in 4

    async def live():
        async with story.controller(crash=True) as api:
            await api.submit(a_spec(stages=0, max_workers=4))
            await settled(api, "j-1", Grid(1, 4))
            (why,) = [event["text"] for event in await api.events() if event["kind"] == "Memory"]
            assert "uncut it takes 0.09 of the 0.07 GiB of a GPU, in 4 parts 0.04: it has 4 or more" in why
            assert f"parts: {why}" in (await api.explain("j-1"))["notes"]
            assert "Moved" not in {event["kind"] for event in await api.events()}, "no other grid was tried"
            assert api._controller.kernel.jobs["j-1"].job.min_gpus == 4
        async with story.controller() as api:
            await settled(api, "j-1", Grid(1, 4))
            assert api._controller.records["j-1"].grids.least_parts == 4

    asyncio.run(live())


def test_where_memory_does_not_ask_for_parts_the_fastest_grid_has_none(tmp_path):
    story = Story(tmp_path, policy="liveput", limits=LIMITS)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000, blocks=BLOCKS, device_bytes=800_000_000)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(stages=0, max_workers=4))
            assert "is learned from its first session" in str((await api.explain("j-1"))["notes"])
            await settled(api, "j-1", Grid(4, 1))
            assert "uncut it takes 0.09 of the 0.75 GiB" in str((await api.explain("j-1"))["notes"])

    asyncio.run(live())


def test_one_that_has_too_few_workers_for_its_parts_lets_them_go_and_waits_for_enough(tmp_path):
    story = Story(tmp_path, policy="liveput", limits=LIMITS)
    story.cloud.jobs["j-1"] = Training(steps=1_000_000, blocks=BLOCKS, device_bytes=79_000_000)

    def stock(nodes):
        story.cloud._tell(AvailabilityChanged(story.cloud.clock.now_s(), "spot", nodes))

    async def live():
        async with story.controller() as api:
            stock(1)
            await api.submit(a_spec(stages=0, max_workers=4))

            async def has_let_go():
                state = api._controller.kernel.jobs["j-1"]
                return state.job.min_gpus == 4 and state.gpus == 0 and state.phase is Phase.WAITING

            await until(has_let_go, "it kept what is no use to it")
            assert (await api.job("j-1"))["step"] == 0
            stock(4)
            await settled(api, "j-1", Grid(1, 4))

    asyncio.run(live())


class Told(MemoryCloud):
    """Remembers who was told to keep what."""

    def __init__(self, offers, clock):
        super().__init__(offers, clock)
        self.keeps = []

    def _arrive(self, node_id, message):
        if isinstance(message, wire.Keep):
            self.keeps.append((node_id, message.parts))
        super()._arrive(node_id, message)


@pytest.mark.parametrize("part", [0, 1])
def test_at_the_notice_of_all_who_hold_a_part_one_who_stays_is_told_to_keep_it(tmp_path, part):
    """While the old grid trains: the part is on another node before theirs go."""
    story = Story(tmp_path, policy="liveput", limits={**LIMITS, "spot": Limit(max_nodes=4)})
    story.cloud = Told(OFFERS, Clock(speedup=60.0))
    story.cloud.jobs["j-1"] = training = Training(steps=1_000_000, blocks=BLOCKS)

    async def live():
        async with story.controller() as api:
            await api.submit(a_spec(stages=2, max_workers=4))
            await settled(api, "j-1", Grid(2, 2))
            await trained(api, "j-1", 50)
            seated = places(api, "j-1")
            going = [node for node, place in seated.items() if place[1] == part]
            story.cloud.sold_out.add("spot")
            for node in going:
                story.cloud.warn(node, 3600.0)

            async def told():
                return story.cloud.keeps

            await until(told, "nobody was told to keep anything")
            assert {node for node, _ in story.cloud.keeps} <= seated.keys() - set(going)
            assert {kept for _, parts in story.cloud.keeps for kept in parts} == {part}
            await settled(api, "j-1", Grid(1, 2))
            assert training.restored == 0

    asyncio.run(live())
