"""A Ray cluster on this machine, with real training: nodes come, are drained and die, and no step is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed
from sublet.errors import RentFailed
from sublet.runtime.agent import processes
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.providers.ray.config import NodeKind
from sublet.runtime.settings import Settings
from sublet.testing.rigs import Ears, until
from sublet.wire.messages import Hello
from tests.rigs.ray_cluster import KIND, NODES, RayRig, add_node

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")

pytestmark = pytest.mark.usefixtures("leftovers")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def rig():
    here = RayRig()
    yield here
    here.restock()
    assert here.clean_up() == []


@asynccontextmanager
async def controller(rig, *held, **knobs):
    """Engine and provider; `held` are rented and have said Hello."""
    engine, provider, ears = rig.engine(), rig.provider(**knobs), Ears()
    await engine.open(ears.hear)
    await provider.open(ears.tell)
    try:
        for node_id in held:
            engine.expect(node_id, f"token-{node_id}")
            await provider.rent(node_id, rig.offer_id, f"token-{node_id}")
            await ears.next(Hello, node_id=node_id)
        yield engine, provider, ears
    finally:
        for node in await provider.list():
            await provider.release(node.node_id)
        await provider.close()
        await engine.close()


def test_nodes_are_added_drained_and_killed_and_no_step_is_lost(rig):
    """The demonstration: a job on all nodes loses one abruptly, gets another, is asked off a third, and ends."""

    async def scene():
        settings = Settings(state_dir=str(rig.folder / "state"), provider="ray", engine="ray", lease_s=10.0)
        api = controller_from(settings)
        running = asyncio.create_task(api.run())
        await asyncio.wait([running, asyncio.create_task(api.started())], return_when=asyncio.FIRST_COMPLETED)
        provider = api._controller.provider._provider  # behind its pace

        async def reaches(condition, patience_s=300.0):
            await until(lambda: running.done() or condition(), patience_s)
            assert not running.done(), running.exception()

        # Long enough that a busy machine has done all the rest before it ends.
        script = ("train_mlp.py", "--samples", "20000", "--epochs", "3", "--ms-per-sample", "2")
        spec = JobSpec(name="mlp", argv=(sys.executable, *script), cwd=str(EXAMPLES), max_workers=NODES + 1)
        job = api.record((await api.submit(spec))["job_id"])
        await reaches(lambda: job.group.size == NODES and job.group.step > 5)

        victim = max(job.group.workers.values(), key=lambda worker: worker.rank)
        joined = job.group.joined
        rig.unplug(provider._held[victim.node_id].ray_node)
        await reaches(lambda: job.group.joined is not joined and job.group.step > job.group.joined.step)
        assert (job.group.size, job.group.joined.source, job.unnoticed) == (NODES - 1, "peer", 1)

        add_node(rig.nodes)
        await reaches(lambda: job.group.size == NODES and job.group.training)

        leaving = max(job.group.workers.values(), key=lambda worker: worker.rank).node_id
        ray_node = provider._held[leaving].ray_node
        rig.drain(ray_node, 8.0)
        await reaches(lambda: leaving not in provider._held)
        await reaches(lambda: job.group.size == NODES - 1 and job.group.training)
        assert ray_node not in {claim.ray_node for claim in provider._held.values()}

        await reaches(lambda: job.outcome, 240.0)
        assert (job.outcome, job.steps_lost, job.noticed) == ("finished", 0, 1)
        assert job.group.step == 3 * -(-20_000 // 256)
        assert "loss" in "".join(path.read_text() for path in (rig.folder / "state").rglob("jobs/*/logs/*.log"))
        await api.shutdown(end_jobs=True)
        await running
        assert not provider._held

    asyncio.run(scene())


def test_when_ray_dies_on_a_machine_nothing_of_ours_lives_on_there(rig):
    async def scene():
        async with controller(rig, "a", "b") as (_, provider, ears):
            agent = next(message.pid for message in ears.all(Hello) if message.node_id == "a")
            ray_node = provider._held["a"].ray_node
            rig.unplug(ray_node, whole=False)
            await ears.next(NodeLost, node_id="a")
            await until(lambda: processes.look(agent) is None)
            assert [node.node_id for node in await provider.list()] == ["b"]
            await provider.rent("c", rig.offer_id, "token-c")
            with pytest.raises(RentFailed):  # not on the dead one, and not twice on another
                await provider.rent("d", rig.offer_id, "token-d")

    asyncio.run(scene())


def test_a_steward_that_is_killed_costs_its_node_and_the_reservation_and_another_takes_its_place(rig):
    async def scene():
        async with controller(rig, "a") as (_, provider, ears):
            claim = provider._held["a"]
            steward = processes.look(processes.look(claim.pid).parent).parent
            os.kill(steward, signal.SIGKILL)
            await ears.next(NodeLost, node_id="a")
            await until(lambda: rig.free_cpus() == NODES)
            await until(lambda: not provider._supply.doubted, 120.0)
            for name in ("b", "c", "d"):
                await provider.rent(name, rig.offer_id, f"token-{name}")
            assert claim.ray_node in {held.ray_node for held in provider._held.values()}

    asyncio.run(scene())


def test_a_drained_node_gets_a_notice_with_its_deadline_and_is_not_rented_again(rig):
    async def scene():
        async with controller(rig, "a") as (_, provider, ears):
            ray_node = provider._held["a"].ray_node
            rig.drain(ray_node, 300.0)
            notice = await ears.next(NodeNoticed, node_id="a")
            assert 100.0 < notice.lost_s - notice.at_s <= 300.0
            await ears.next(AvailabilityChanged, nodes=NODES - 1)
            await provider.release("a")
            for name in ("b", "c"):
                await provider.rent(name, rig.offer_id, f"token-{name}")
            with pytest.raises(RentFailed):
                await provider.rent("d", rig.offer_id, "token-d")
            assert ray_node not in {claim.ray_node for claim in provider._held.values()}
            assert len(ears.all(NodeNoticed)) == 1

    asyncio.run(scene())


def test_what_others_of_the_cluster_use_is_not_rented_and_what_we_hold_is_not_given_to_them(rig):
    import ray

    @ray.remote(num_cpus=1)
    class Neighbour:
        def where(self):
            return ray.get_runtime_context().get_node_id()

    async def scene():
        async with controller(rig) as (_, provider, ears):
            first = Neighbour.remote()
            theirs = await first.where.remote()
            await ears.next(AvailabilityChanged, nodes=NODES - 1)
            for number in range(NODES - 1):
                await provider.rent(f"n{number}", rig.offer_id, f"token-{number}")
            assert theirs not in {claim.ray_node for claim in provider._held.values()}
            with pytest.raises(RentFailed):
                await provider.rent("more", rig.offer_id, "token-more")
            second = Neighbour.remote()
            waits = asyncio.wrap_future(second.where.remote().future())
            await asyncio.sleep(1.0)
            assert not waits.done()
            freed = provider._held["n0"].ray_node
            await provider.release("n0")
            assert await asyncio.wait_for(waits, 300.0) == freed
            for neighbour in (first, second):
                ray.kill(neighbour)
            await until(lambda: ears.all(AvailabilityChanged)[-1].nodes == NODES)

    asyncio.run(scene())


def test_what_is_missing_is_waited_for_at_ray_and_rented_when_it_comes(rig):
    """A node that is added by hand stands for one that Ray's autoscaler gets: both see only what waits at Ray."""

    async def scene():
        kind = NodeKind(name=KIND.name, slots=1, cpus=1.0, most=NODES + 1, autoscaled=True)
        async with controller(rig, kinds=(kind,)) as (_, provider, ears):
            assert (await ears.next(AvailabilityChanged)).nodes == NODES + 1  # whatever is there now
            for number in range(NODES):
                await provider.rent(f"n{number}", rig.offer_id, f"token-{number}")
            for _ in range(2):  # asked for once, however often we come back
                with pytest.raises(RentFailed, match="autoscaler"):
                    await provider.rent("last", rig.offer_id, "token-last")
            assert provider._waits.count(rig.offer_id) == 1
            add_node(rig.nodes)
            (came,) = await until(lambda: provider._waits.came(rig.offer_id), 120.0)
            await provider.rent("last", rig.offer_id, "token-last")
            assert provider._held["last"].ray_node == came
            assert provider._waits.count(rig.offer_id) == 0
        rig.nodes.remove_node(next(node for node in rig.nodes.worker_nodes if node.node_id == came))

    asyncio.run(scene())


def test_stewards_that_nobody_wants_any_more_end_themselves(rig):
    async def scene():
        namespace = f"sublet-idle-{os.getpid()}"
        async with controller(rig, "a", namespace=namespace, idle_s=1.0):
            await asyncio.sleep(2.0)
            held = rig.cluster.stewards(namespace)
            assert held  # the one with a node stays
        await until(lambda: not rig.cluster.stewards(namespace), 120.0)

    asyncio.run(scene())
