"""A worker that reports what cannot be: its own job may suffer, the plan and the bill of others do not."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.errors import BadInput
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.lines import from_line, to_line
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer

pytestmark = pytest.mark.usefixtures("virtual_time")
PATIENCE_S = 90.0


async def until(condition, what):
    end_s = time.monotonic() + PATIENCE_S
    while not (found := await condition()):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.02)
    return found


def stepped(group, worker, **facts):
    """A report as it would come over the wire; None where the wire refuses it."""
    given = {"worker_id": worker.id, "generation": group.round.number, "step": group.step + 1, "done": 1.0, "epoch": 0}
    try:
        return from_line(to_line(wire.Stepped(**{**given, "loss": 1.0, "step_s": 0.1, "global_batch": 8, **facts})))
    except BadInput:
        return None


@pytest.mark.parametrize(
    "facts",
    [
        {"step_s": 1e-300, "global_batch": (1 << 63) - 1},
        {"step_s": 1e-320},
        {"step_s": 1e15, "global_batch": 1},
        {"done": 1e15, "loss": float("nan"), "noise": float("inf")},
    ],
    ids=["infinitely-fast", "nearly", "infinitely-slow", "beyond-the-end"],
)
def test_a_job_that_says_it_is_infinitely_fast_breaks_neither_plan_nor_bill_nor_the_end(tmp_path, facts):
    async def live():
        cloud = MemoryCloud([one_gpu_offer("spot")], Clock(speedup=60.0))
        policy = plugins.load("sublet.policies", "price")()
        with api_over(cloud, tmp_path / "state", policy, limits={"spot": Limit(max_nodes=3)}) as api:
            running = asyncio.create_task(api.run())
            await api.started()

            async def trains(job_id):
                return (await api.job(job_id))["step"] > 0

            await api.submit(JobSpec(name="wild", argv=("x",), cwd="/", max_workers=1))
            await until(lambda: trains("wild-1"), "it never trained")
            group = api._controller.records["wild-1"].group
            for _ in range(20):
                (worker,) = group.workers.values()
                if (said := stepped(group, worker, **facts)) is not None:
                    cloud._say(worker.node_id, wire.FromWorker(message=said))
            await api.submit(JobSpec(name="tame", argv=("x",), cwd="/", max_workers=1))
            await until(lambda: trains("tame-1"), "no plan was made for the other job")
            assert not (await api.metrics()).get("alarms")
            json.dumps([await api.cost(), await api.budget()], allow_nan=False)
            bill, now_s = api._controller.bill, api._controller.now_s()
            bill.settle(now_s)
            parts = sum(account.total.grains for account in bill.jobs.values()) + bill.unused
            assert parts == bill.total.grains == api._controller.kernel.ledger.spent(bill.settled_s).grains
            await api.shutdown()
            assert cloud.nodes == {}, "everything is given back"
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())


@pytest.mark.parametrize("blocked_s", [1e308, -5.0])
def test_a_checkpoint_of_impossible_length_is_refused_on_the_wire(blocked_s):
    saved = wire.Saved(worker_id="w", step=1, done=1.0, seconds=1.0, blocked_s=blocked_s, size_bytes=1)
    with pytest.raises(BadInput, match="blocked_s"):
        from_line(to_line(saved))


def test_a_job_that_cannot_be_told_to_stop_does_not_keep_the_nodes_of_all(tmp_path, monkeypatch):
    async def live():
        cloud = MemoryCloud([one_gpu_offer("spot")], Clock(speedup=60.0))
        policy = plugins.load("sublet.policies", "max-speedup")()
        with api_over(cloud, tmp_path / "state", policy, limits={"spot": Limit(max_nodes=3)}) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            for name in ("wild", "tame"):
                await api.submit(JobSpec(name=name, argv=("x",), cwd="/", max_workers=1))

            async def both_train():
                return all(view["step"] > 0 for view in await api.jobs())

            await until(both_train, "they never trained")
            jobs = api._controller.jobs
            sound = jobs.describe
            fault = RuntimeError("a fault of ours")
            monkeypatch.setattr(jobs, "describe", lambda r: sound(r) if r.id == "tame-1" else raises(fault))
            await api._controller.stop(limit_s=1.0)
            assert cloud.nodes == {}
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())


def raises(error):
    raise error
