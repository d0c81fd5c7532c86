"""One brain, two worlds: the demonstration with real processes, and the same scenario in the simulator.

The live run comes first. What it measured of its jobs (speed at each width, pauses) and of its nodes (time to boot)
goes into the simulator, with the same offers, market, budget and policy. Makespan and bill should agree: then what the
simulator says of a policy holds for the system that users run.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Job
from sublet.errors import Infeasible
from sublet.market.traces import load_trace
from sublet.runtime.controller.records import kernel_job
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import budget_from, controller_from, policy_from
from sublet.runtime.controller_api.views import ENDED, JobView
from sublet.runtime.providers.local.build import local_offers, local_supply
from sublet.runtime.settings import Settings
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.studies.live.scene import UNNOTICED_S, demo_jobs, demo_settings
from sublet.studies.study import Check, Findings, Study, StudyTable, Tell, at_least, equals, within

__all__ = ["STUDY", "LiveRun", "run_live", "simulate_live"]

TOLERANCE = 0.10  # of users.md: makespan and cost, simulator against local processes
GIVE_UP_S = 300.0  # wall
QUICK = 0.4  # of the work of the demonstration


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What really happened, in cloud time and dollars."""

    makespan_s: float
    usd: float
    boot_s: float
    jobs: tuple[Job, ...]  # with the speeds that were measured
    views: tuple[JobView, ...]
    wall_s: float


def run_live(settings: Settings, work: float, tell: Tell) -> LiveRun:
    """The demonstration without its screen, from a cold start to the last bill."""
    return asyncio.run(_run_live(settings, work, tell))


async def _run_live(settings: Settings, work: float, tell: Tell) -> LiveRun:
    began = time.monotonic()
    api = controller_from(settings)
    running = asyncio.create_task(api.run())
    try:
        await asyncio.wait([running, asyncio.create_task(api.started())], return_when=asyncio.FIRST_COMPLETED)
        for spec in demo_jobs(work):
            await api.submit(spec)
        views = await _all_ended(api, running, tell)
        cost = await api.cost()
        events = await api.events(limit=100_000)
    finally:
        await api.shutdown(end_jobs=True)
        await running
    asked = {e["node_id"]: e["at_s"] for e in events if e["kind"] == "RentNode"}
    boots = [e["at_s"] - asked[e["node_id"]] for e in events if e["kind"] == "NodeReady"]
    first_s = min(view["submitted_s"] for view in views)
    return LiveRun(
        makespan_s=max(view["ended_s"] or 0.0 for view in views) - first_s,
        usd=cost["usd_total"],
        boot_s=fmean(boots),
        jobs=tuple(kernel_job(api.record(view["id"]), settings.speedup) for view in views),
        views=tuple(views),
        wall_s=time.monotonic() - began,
    )


async def _all_ended(api: ControllerApi, running: asyncio.Task[None], tell: Tell) -> list[JobView]:
    give_up = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up and not running.done():
        await asyncio.sleep(0.5)
        views = list(await api.jobs())
        tell("live: " + ", ".join(f"{v['name']} {v['progress'] or 0:.0%}" for v in views))
        if all(view["phase"] in ENDED for view in views):
            return views
    raise Infeasible("the live run did not end", binding="seconds", needed=GIVE_UP_S, available=GIVE_UP_S)


def simulate_live(settings: Settings, live: LiveRun) -> tuple[float, float]:
    """Makespan and dollars of the same scenario in the simulator."""
    traces = [load_trace(name, repeat=True) for name in settings.market]
    offers = [replace(offer, boot_s=live.boot_s) for offer in local_offers(settings, traces)]
    most = settings.most_nodes

    def market() -> Iterator[AvailabilityChanged]:
        """The recorded supply, less the node that was taken without a word."""
        gone = False
        for change in local_supply(settings, traces, offers):
            if change.at_s > 2 * UNNOTICED_S + live.makespan_s:
                return
            if change.at_s >= UNNOTICED_S and not gone:
                gone = True
            taken = 1 if gone and change.nodes else 0
            yield replace(change, nodes=None if change.nodes is None else change.nodes - taken)

    cloud = Cloud(
        offers=offers,
        limits={offer.id: Limit(max_nodes=most) for offer in offers},
        budget=budget_from(settings),
        physics=Physics(provision_s=live.boot_s, notice_s=settings.notice_s),
        market=market,
    )
    run = simulate(live.jobs, policy_from(settings), cloud, seed=settings.seed)
    return run.metrics.makespan_s, run.metrics.usd


def _run(quick: bool, tell: Tell) -> Findings:
    folder = Path(tempfile.mkdtemp(prefix="sublet-live-"))
    try:
        settings = replace(demo_settings(folder), hurry=True)  # by time alone, as it was always measured
        live = run_live(settings, QUICK if quick else 1.0, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell("the same in the simulator")
    makespan_s, usd = simulate_live(settings, live)
    finished = sum(view["phase"] == "finished" for view in live.views)
    checks: list[Check] = [
        equals("jobs finished", finished, len(live.views)),
        equals("steps lost", sum(view["steps_lost"] for view in live.views), 0, unit="steps"),
        within("makespan, live over simulated", live.makespan_s / makespan_s, 1.0, TOLERANCE),
        within("dollars, live over simulated", live.usd / usd, 1.0, TOLERANCE),
    ]
    if not quick:
        losses = sum(view["preemptions_noticed"] + view["preemptions_unnoticed"] for view in live.views)
        checks.append(at_least("nodes lost under jobs", losses, 1))
    rows = [
        ["live", f"{live.makespan_s:,.0f}", f"{live.usd:.3f}", f"{live.wall_s:.0f}"],
        ["simulated", f"{makespan_s:,.0f}", f"{usd:.3f}", ""],
    ]
    table = StudyTable(
        title="The same scenario in both worlds", columns=["world", "makespan s", "USD", "wall s"], rows=rows
    )
    note = f"nodes took {live.boot_s:.0f} s of cloud time to boot, as measured; a wall second is {settings.speedup:g} s"
    return Findings(checks=checks, tables=[table], notes=[note])


STUDY = Study(name="live", title="the demonstration with real processes agrees with the simulator", run=_run)
