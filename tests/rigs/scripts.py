"""Scripts without the SDK under the real controller, as processes that are none: a test says what each does."""

from __future__ import annotations

import asyncio

from sublet.domain.plan import arrival
from sublet.planning.draft import Draft
from sublet.runtime.clock import Clock
from sublet.wire import messages as wire
from sublet_lab.memory_cloud import MemoryCloud
from sublet_lab.memory_cloud import Worker as Process
from tests.rigs.story import OFFERS, Story, a_spec, adds_up, phase, until

__all__ = ["Scene", "Scripts", "Widths", "a_script", "earning", "living", "planned_again", "start_over", "texts"]


class Scripts(MemoryCloud):
    """Workers that do nothing by themselves; `obeys` is the code that they end with when told to."""

    def __init__(self, offers, clock, *, obeys=-15):
        super().__init__(offers, clock)
        self.obeys, self.orders, self.saves = obeys, [], True
        self.looks = {"looked": True}  # what agents see of each that ends

    def _start(self, node, message):
        self.orders.append(message)
        node.workers[message.worker_id] = Process(message.worker_id, message.job_id, node.id)
        where = {"host": "127.0.0.1", "port": 4000} if getattr(message, "offers", False) else {}
        self._say(node.id, wire.WorkerUp(worker_id=message.worker_id, pid=1, **where))

    def _end(self, node, worker, code, error=""):
        self._say(node.id, wire.WorkerSeen(worker_id=worker.id, **self.looks))
        super()._end(node, worker, self.obeys if code == -9 else code, error)

    def running(self):
        return [(node, worker) for node in self.nodes.values() for worker in node.workers.values()]

    def see(self, **facts):
        """All agents look at all workers."""
        for node, worker in self.running():
            self._say(node.id, wire.WorkerSeen(worker_id=worker.id, **{"looked": True, **facts}))

    def hear(self, kind, **facts):
        """All workers say this."""
        for node, worker in self.running():
            self._say(node.id, wire.FromWorker(message=kind(worker_id=worker.id, **facts)))

    def end_all(self, code, error=""):
        for node, worker in self.running():
            self._end(node, worker, code, error)


class Scene(Story):
    def __init__(self, folder, *, obeys=-15, **facts):
        super().__init__(folder, speedup=3600.0, **facts)
        self.cloud = Scripts(OFFERS, Clock(speedup=3600.0), obeys=obeys)


class Widths:
    """Gives every job so many workers, in the first of these markets where it may be."""

    def __init__(self, wide=1):
        self.wide, self.markets = wide, ["spot", "on-demand"]

    def decide(self, snapshot):
        draft = Draft(snapshot)
        for state in [*snapshot.active.values(), *snapshot.waiting.by(arrival)]:
            pool = next(pool for market in self.markets if state.job.may_run_in(pool := f"T4x1:{market}"))
            draft.give(state, pool, max(state.job.min_gpus, min(self.wide, state.job.max_gpus)))
        return draft.plan()


def a_script(**facts):
    return a_spec(**{"sdk": False, "max_workers": 1, "market": "spot", "grace_s": 0.1, **facts})


async def earning(api, usd=0.02, job_id="j-1"):
    """It has trained for some dollars since now."""
    before = (await api.cost(job_id))["usd_total"]

    async def spent():
        return (await api.cost(job_id))["usd_total"] >= before + usd

    await phase(api, job_id, "running")
    await until(spent, "it costs nothing")


async def planned_again(api, job_id="j-1"):
    """A plan is made that knows of everything."""
    controller, now_s = api._controller, api._controller.now_s()
    controller.jobs.relearn(api.record(job_id))
    await until(
        lambda: asyncio.sleep(0, controller.decisions.plan_s > now_s and not controller.kernel.planning), "no plan"
    )


async def start_over(api, job_id="j-1"):
    """It has to leave, and may come back."""
    await api.pause(job_id)
    await phase(api, job_id, "paused")
    await api.resume(job_id)


async def texts(api, kind):
    return [event["text"] for event in await api.events() if event["kind"] == kind]


def living(story, scene):
    async def live():
        async with story.controller() as api:
            await scene(api)
            adds_up(api)

    asyncio.run(live())
