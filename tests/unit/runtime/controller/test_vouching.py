"""A node that speaks for workers of another one is not believed, and people are told."""

from __future__ import annotations

import asyncio
import time

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer

pytestmark = pytest.mark.usefixtures("virtual_time")
PATIENCE_S = 90.0


async def until(condition, what):
    end_s = time.monotonic() + PATIENCE_S
    while not (found := await condition()):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.02)
    return found


def lived(folder, scene):
    """Two jobs train, each on a node of its own; the scene gets the worker of the second and the node of the first."""

    async def live():
        cloud = MemoryCloud([one_gpu_offer("spot")], Clock(speedup=60.0))
        policy = plugins.load("sublet.policies", "max-speedup")()
        with api_over(cloud, folder / "state", policy, limits={"spot": Limit(max_nodes=2)}) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            for name in ("thief", "victim"):
                await api.submit(JobSpec(name=name, argv=("x",), cwd="/", max_workers=1))

            async def both_train():
                views = await api.jobs()
                return views if all(view["phase"] == "running" and view["step"] for view in views) else None

            views = await until(both_train, "they never trained")
            node = next(view["node_ids"][0] for view in views if view["id"] == "thief-1")
            (worker,) = api._controller.records["victim-1"].group.workers.values()
            assert worker.node_id != node
            await scene(api, cloud, node, worker)
            await asyncio.sleep(0.1)
            for job_id in ("thief-1", "victim-1"):
                before = (await api.job(job_id))["step"]

                async def trains_on(job_id=job_id, before=before):
                    return (await api.job(job_id))["step"] > before

                await until(trains_on, f"{job_id} does not train any more")
            group = api._controller.records["victim-1"].group
            assert list(group.workers) == [worker.id]
            assert group.workers[worker.id].node_id == worker.node_id
            told = [event for event in await api.events() if event["kind"] == "Alarm" and event["node_id"] == node]
            assert len(told) == 1, "one line, however often it lies"
            assert (await api.metrics())["alarms"]["impostor"] >= 1
            await api.shutdown()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())


LIES = [
    lambda worker_id: wire.WorkerDown(worker_id=worker_id, code=1, error="a lie"),
    lambda worker_id: wire.FromWorker(message=wire.Finished(worker_id=worker_id, step=9, done=1.0)),
    lambda worker_id: wire.FromWorker(message=wire.Broke(worker_id=worker_id, generation=1, step=1, why="a lie")),
    lambda worker_id: wire.FromWorker(
        message=wire.Saved(worker_id=worker_id, step=1 << 40, done=1.0, seconds=1e6, blocked_s=1e6, size_bytes=1)
    ),
]


@pytest.mark.parametrize("lie", LIES, ids=["down", "finished", "broke", "saved"])
def test_a_node_cannot_end_or_bill_the_worker_of_another_node(tmp_path, lie):
    async def scene(api, cloud, node, worker):
        for _ in range(50):
            cloud._say(node, lie(worker.id))

    lived(tmp_path, scene)


@pytest.mark.parametrize("worker_id", ["victim-1.0.77", "same"])
def test_a_hello_that_claims_workers_which_nobody_started_there_is_not_believed(tmp_path, worker_id):
    async def scene(api, cloud, node, worker):
        claim = worker.id if worker_id == "same" else worker_id
        there = cloud.nodes[node]
        workers = {each.id: each.job_id for each in there.workers.values()} | {claim: "victim-1"}
        sent, cloud_send = [], cloud._arrive
        cloud._arrive = lambda node_id, message: (sent.append((node_id, message)), cloud_send(node_id, message))
        cloud._say(node, wire.Hello(node_id=node, token=there.token, pid=1, workers=workers))
        await asyncio.sleep(0.05)
        ended = [(n, message.worker_id) for n, message in sent if isinstance(message, wire.EndWorker)]
        assert ended == [(node, claim)], "what runs there unasked is ended, there and nowhere else"

    lived(tmp_path, scene)


def test_a_worker_of_one_job_is_not_believed_to_be_of_another(tmp_path):
    async def scene(api, cloud, node, worker):
        there = cloud.nodes[node]
        workers = {each.id: each.job_id for each in there.workers.values()} | {worker.id: "thief-1"}
        cloud._say(node, wire.Hello(node_id=node, token=there.token, pid=1, workers=workers))
        assert worker.id not in api._controller.records["thief-1"].group.workers

    lived(tmp_path, scene)
