"""The life of one state directory: real controllers, one after the other, over a cloud in memory."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

from sublet import plugins
from sublet.domain.budget import UNLIMITED, Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller.host import PACES
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.store import Store
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer

OFFERS = (one_gpu_offer("spot", 0.5, wind_down_s=120.0), one_gpu_offer("on-demand", 1.5, wind_down_s=120.0))
LIMITS = {"spot": Limit(max_nodes=4), "on-demand": Limit(max_nodes=4)}
PATIENCE_S = 90.0


class Story:
    """One state directory, one cloud, and controllers one after the other."""

    def __init__(self, folder, *, speedup=60.0, policy="max-speedup", budget=UNLIMITED, limits=LIMITS, paces=PACES):
        self.folder, self.speedup, self.budget, self.limits = folder / "state", speedup, budget, limits
        self.cloud = MemoryCloud(OFFERS, Clock(speedup=speedup))
        self.paces = paces
        self.policy = plugins.load("sublet.policies", policy)()

    @asynccontextmanager
    async def controller(self, *, crash=False):
        """Leaving it shuts it down, or is a crash: then nothing of it is ever heard again."""
        with api_over(
            self.cloud, self.folder, self.policy, budget=self.budget, limits=self.limits, paces=self.paces
        ) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            yield api
            if crash:
                await api._controller.abandon()
            else:
                await api.shutdown()
            await self.cloud.close()
            await asyncio.gather(running, return_exceptions=True)

    def log(self):
        store = Store(self.folder / "log.sqlite")
        lines = [store.get("header"), *store.lines()]
        store.close()
        return lines


def a_spec(**facts):
    return JobSpec(**{"name": "j", "argv": ("x",), "cwd": "/", "max_workers": 2, **facts})


async def until(condition, what):
    end_s = time.monotonic() + PATIENCE_S
    while not (found := await condition()):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.02)
    return found


async def phase(api, job_id, *phases):
    async def reached():
        view = await api.job(job_id)
        return view if view["phase"] in phases else None

    return await until(reached, f"{job_id} never became {phases}")


async def trained(api, job_id, steps):
    async def reached():
        return (await api.job(job_id))["step"] >= steps

    await until(reached, f"{job_id} never made {steps} steps")


def adds_up(api):
    """Parts and ledger, to the grain."""
    controller = api._controller
    now_s = controller.now_s()
    controller.bill.settle(now_s)
    parts = sum(account.total.grains for account in controller.bill.jobs.values()) + controller.bill.unused
    assert parts == controller.bill.total.grains == controller.kernel.ledger.spent(controller.bill.settled_s).grains
    assert controller.bill.unused >= 0
