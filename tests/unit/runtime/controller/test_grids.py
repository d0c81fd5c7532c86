"""Jobs that are cut, under a live controller: which grid, what losses do to it, what is learned and told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest

from sublet.domain.actions import ResizeJob, StartJob
from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.shape import Grid
from sublet.kernel.invariants import check
from sublet.policies.liveput.policy import Liveput
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.memory_cloud import Training
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
            moved = [event["text"] for event in await api.events() if event["kind"] == "Moved"]
            assert [text.partition(":")[0] for text in moved] == ["is 1 x 3 (between)", "is 2 x 3 (between)"]
            assert all("32.0 MB at most to one, 0.01 s" in text for text in moved), "a third of the blocks"

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
            assert "it has 0 blocks to be cut into 3 stages; next: name them" in view["error"]

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
