"""How busy the GPUs of workers are, as users see it: in the job, and in its metrics."""

from __future__ import annotations

import asyncio

import pytest

from sublet.api.metrics import exposition
from sublet.wire import messages as wire
from tests.rigs.story import Story, a_spec, phase

GIB = 1 << 30


@pytest.mark.usefixtures("virtual_time")
def test_what_is_told_is_in_the_job_and_in_its_metrics_until_the_worker_goes(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            job_id = (await api.submit(a_spec(name="busy", max_workers=1)))["job_id"]
            await phase(api, job_id, "running")
            assert (await api.job(job_id))["gpus"] == []
            assert b"sublet_worker_gpu_busy_ratio{" not in (await exposition(api))[0]
            ((node, worker),) = [(n, w) for n in story.cloud.nodes.values() for w in n.workers.values()]
            seen = wire.GpuSeen(worker_id=worker.id, gpus=1, busy=0.25, memory_bytes=GIB, memory_of_bytes=16 * GIB)
            story.cloud._say("another", seen)  # whose worker it is not
            await asyncio.sleep(1.0)
            assert (await api.job(job_id))["gpus"] == []
            story.cloud._say(node.id, seen)
            await asyncio.sleep(1.0)
            (gpu,) = (await api.job(job_id))["gpus"]
            assert (gpu["node_id"], gpu["rank"], gpu["busy"], gpu["memory_of_bytes"]) == (node.id, 0, 0.25, 16 * GIB)
            text = (await exposition(api))[0].decode()
            labels = f'job="{job_id}",name="busy",node="{node.id}",worker="{worker.id}"'
            assert f"sublet_worker_gpu_busy_ratio{{{labels}}} 0.25" in text
            await api.cancel(job_id, now=True)
            await phase(api, job_id, "cancelled")
            await asyncio.sleep(1.0)  # its worker ends
            assert (await api.job(job_id))["gpus"] == []

    asyncio.run(live())
