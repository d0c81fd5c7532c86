"""The facts known before the predicted run: the profile of the script, and the times of starts and regroupings.

The profile is taken as `sublet profile` takes it. Starts of processes, and forming of groups, are seen in a short run
of the same script whose worker count is changed a few times by its owner. Wall seconds throughout.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.demo.grid.run import boots_s
from sublet.errors import Infeasible
from sublet.perf.live.rows import StepRow
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.controller_api.views import ENDED
from sublet.runtime.profiling.run import profile_script
from sublet_lab.studies.live.scenarios import BOOT_S, NAME, SPEEDUP, Arrival, Scenario, paced_job
from sublet_lab.studies.study import Tell

WIDTHS = (1, 2, 4)  # that are profiled: three is foretold
WALK, WALK_QUICK = (1, 2, 4, 2, 3, 1), (1, 2, 4, 2)  # worker counts of the run that regroups
STEPS = 3  # to make at each
CROWD = (48, 48, 48)  # samples of jobs that start together with it: in a burst a start takes longer
GIVE_UP_S = 60.0
ENOUGH = 1_000_000  # samples: it does not end by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Frictions:
    """Wall seconds, each as often as it was seen."""

    boots: tuple[float, ...]  # of a node, beyond what the box pretends
    plans: tuple[float, ...]  # from a submission to the first order
    starts: tuple[float, ...]  # of a job, from the order to its first step
    grows: tuple[float, ...]  # from the order to the wider group; the old one trains on while newcomers load
    shrinks: tuple[float, ...]  # the same of a smaller one: no worker has to load anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that the simulator is told of the machine and the script."""

    rows: tuple[StepRow, ...]
    frictions: Frictions


def known_from_profiling(folder: Path, *, seconds: float, walk: Sequence[int] = WALK, tell: Tell) -> Known:
    """Profile the script into `folder`/profiles, then see what its changes take."""
    importlib.import_module("scipy.optimize")  # in the midst of a run it would hold everybody up
    tell("profile of the script")
    found = profile_script(
        paced_job(ENOUGH, max(WIDTHS)), widths=WIDTHS, seconds=seconds, folder=folder / "profiles", tell=tell
    )
    tell("what starting and regrouping take")
    scenario = Scenario(name="walk", arrivals=(Arrival(0.0, ENOUGH, max(WIDTHS)),))
    events = asyncio.run(_walk(scenario, walk, folder / "walk"))
    rows = tuple(row for profile in found.profiles if profile.name == NAME for row in profile.rows)
    return Known(rows=rows, frictions=frictions_from(events))


async def _walk(scenario: Scenario, walk: Sequence[int], state_dir: Path) -> Sequence[Any]:
    """The events of a job whose owner changes its worker count again and again."""
    api = controller_from(scenario.settings(state_dir))
    running = asyncio.create_task(api.run())
    try:
        await asyncio.wait([running, asyncio.create_task(api.started())], return_when=asyncio.FIRST_COMPLETED)
        job_id, *others = [(await api.submit(paced_job(n, walk[0])))["job_id"] for n in (ENOUGH, *CROWD)]
        for other in others:
            await _until_ended(api, other)
        for width in walk:
            await api.scale(job_id, low=width, high=width)
            await _until_trained(api, job_id, width)
        return await api.events(limit=100_000)
    finally:
        await api.shutdown(end_jobs=True)
        await running


async def _until_ended(api: ControllerApi, job_id: str) -> None:
    give_up_s = time.monotonic() + GIVE_UP_S
    while True:
        if (await api.job(job_id))["phase"] in ENDED:
            return
        if time.monotonic() > give_up_s:
            raise Infeasible("a short job did not end", binding="seconds", needed=GIVE_UP_S, available=GIVE_UP_S)
        await asyncio.sleep(0.05)


async def _until_trained(api: ControllerApi, job_id: str, width: int) -> None:
    """It has so many workers, and has made a few steps with them."""
    give_up_s, first = time.monotonic() + GIVE_UP_S, None
    while True:
        view = await api.job(job_id)
        if view["phase"] == "running" and view["workers"] == width:
            first = view["step"] if first is None else first
            if view["step"] >= first + STEPS:
                return
        if time.monotonic() > give_up_s or view["phase"] in ENDED:
            why = f"the run that regroups does not get on: {view['phase']} on {view['workers']} workers {view['error']}"
            raise Infeasible(why, binding="seconds", needed=GIVE_UP_S, available=GIVE_UP_S)
        await asyncio.sleep(0.05)


def frictions_from(events: Sequence[Any]) -> Frictions:
    """From the events of a run, in cloud time."""
    starts: list[float] = []
    grows: list[float] = []
    shrinks: list[float] = []
    asked: dict[str, tuple[str, float, int]] = {}  # job -> the order that it follows
    workers: dict[str, int] = {}
    for event in events:
        job_id = event["job_id"]
        match event["kind"]:
            case "StartJob" | "ResizeJob":
                asked[job_id] = (event["kind"], event["at_s"], event["workers"] or 0)
            case "JobStarted" | "JobResized" if job_id in asked:
                kind, since_s, wanted = asked.pop(job_id)
                into = starts if kind == "StartJob" else grows if wanted > workers[job_id] else shrinks
                into.append((event["at_s"] - since_s) / SPEEDUP)
                workers[job_id] = wanted
            case _:
                pass
    submitted_s = next(event["at_s"] for event in events if event["kind"] == "JobSubmitted")
    rented_s = next(event["at_s"] for event in events if event["kind"] == "RentNode")
    return Frictions(
        boots=tuple(max(0.0, boot_s - BOOT_S) / SPEEDUP for boot_s in boots_s(events)),
        plans=((rented_s - submitted_s) / SPEEDUP,),
        starts=tuple(starts),
        grows=tuple(grows),
        shrinks=tuple(shrinks),
    )
