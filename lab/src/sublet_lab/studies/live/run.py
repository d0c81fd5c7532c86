"""A run with real processes: a controller, nodes of the cloud on this machine, and jobs that come at their times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sublet.demo.grid.run import boots_s
from sublet.domain.job import Job
from sublet.errors import Infeasible
from sublet.runtime.controller.memory.records import kernel_job
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.controller_api.views import ENDED, JobView
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings
from sublet_lab.studies.study import Tell

GIVE_UP_S = 300.0  # wall
LOOK_S = 0.5  # wall


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """The real run, in cloud time and dollars."""

    makespan_s: float
    usd: float
    boot_s: float
    jobs: tuple[Job, ...]  # with the speeds that were measured
    views: tuple[JobView, ...]
    wall_s: float


def run_live(settings: Settings, arrivals: Sequence[tuple[float, JobSpec]], tell: Tell) -> LiveRun:
    """From a cold start to the last bill; jobs come at their cloud times."""
    return asyncio.run(_run_live(settings, arrivals, tell))


async def _run_live(settings: Settings, arrivals: Sequence[tuple[float, JobSpec]], tell: Tell) -> LiveRun:
    began = time.monotonic()
    api = controller_from(settings)
    running = asyncio.create_task(api.run())
    try:
        await asyncio.wait([running, asyncio.create_task(api.started())], return_when=asyncio.FIRST_COMPLETED)
        for at_s, spec in sorted(arrivals, key=lambda arrival: arrival[0]):
            wait_s = (at_s - (await api.health())["now_s"]) / settings.speedup
            await asyncio.sleep(max(0.0, wait_s))
            await api.submit(spec)
        views = await _all_ended(api, running, tell)
        cost = await api.cost()
        events = await api.events(limit=100_000)
    finally:
        await api.shutdown(end_jobs=True)
        await running
    first_s = min(view["submitted_s"] for view in views)
    return LiveRun(
        makespan_s=max(view["ended_s"] or 0.0 for view in views) - first_s,
        usd=cost["usd_total"],
        boot_s=fmean(boots_s(events)),
        jobs=tuple(kernel_job(api.record(view["id"]), settings.speedup) for view in views),
        views=tuple(views),
        wall_s=time.monotonic() - began,
    )


async def _all_ended(api: ControllerApi, running: asyncio.Task[None], tell: Tell) -> list[JobView]:
    give_up = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up and not running.done():
        await asyncio.sleep(LOOK_S)
        views = list(await api.jobs())
        tell("live: " + ", ".join(f"{v['name']} {v['progress'] or 0:.0%}" for v in views))
        if all(view["phase"] in ENDED for view in views):
            return views
    raise Infeasible("the live run did not end", binding="seconds", needed=GIVE_UP_S, available=GIVE_UP_S)
