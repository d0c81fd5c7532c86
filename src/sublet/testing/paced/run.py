"""Real jobs of the paced script under a real controller on this machine: run to their end, and all that they did."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sublet.domain.shape import Grid, Shape
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.controller_api.views import ENDED, JobView
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings
from sublet.runtime.store import Store
from sublet.testing.paced.script import Step, read_steps

SCRIPT = Path(__file__).with_name("script.py")
LOOK_S = 0.5
GIVE_UP_S = 240.0
AWAIT_MS = 10.0  # a sample, for which a job waits that its owner moves: a busy machine looks seldom


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedJob:
    """A job of the paced script; `flags` are its arguments, by name."""

    name: str
    least: int = 1
    most: int = 1
    flags: Mapping[str, float | str] = field(default_factory=dict)
    moved: bool = False  # after a third of its work its owner resizes it: to the least, or one more than that

    def spec(self, home: Path) -> JobSpec:
        """As it is submitted; its workers write to `home/NAME`."""
        (home / self.name).mkdir()
        awaits = {"await-ms": AWAIT_MS} if self.moved else {}
        flags = [str(part) for name, value in {**self.flags, **awaits}.items() for part in (f"--{name}", value)]
        return JobSpec(
            name=self.name,
            argv=(sys.executable, str(SCRIPT), str(home / self.name), *flags),
            cwd=str(home),
            env={"OMP_NUM_THREADS": "1"},
            min_workers=self.least,
            max_workers=self.most,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one job."""

    view: JobView  # when it had ended
    steps: tuple[Step, ...]  # of all its workers
    orders: tuple[Shape, ...]  # into which it was started or moved
    notes: tuple[str, ...]  # that `explain` has ever shown of it


def run_paced(jobs: Sequence[PacedJob], **settings: Any) -> dict[str, Outcome]:
    """All of them, submitted one after the other; `settings` are those of a controller. Nothing is left behind."""
    home = Path(tempfile.mkdtemp(prefix="sublet-paced-"))
    try:
        views, notes = asyncio.run(_run(jobs, home, Settings(state_dir=str(home / "state"), **settings)))
        orders = _orders(home / "state" / "log.sqlite")
        return {
            view["name"]: Outcome(
                view=view,
                steps=tuple(read_steps(home / view["name"])),
                orders=tuple(orders.get(view["id"], ())),
                notes=tuple(notes[view["id"]]),
            )
            for view in views
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def _run(
    jobs: Sequence[PacedJob], home: Path, settings: Settings
) -> tuple[list[JobView], dict[str, dict[str, None]]]:
    api = controller_from(settings)
    running = asyncio.create_task(api.run())
    try:
        await api.started()
        to_move = {}
        for job in jobs:
            view = await api.submit(job.spec(home))
            if job.moved:
                to_move[view["job_id"]] = job.least
        return await _all_ended(api, to_move)
    finally:
        await api.shutdown(end_jobs=True)
        await running


async def _all_ended(api: ControllerApi, to_move: dict[str, int]) -> tuple[list[JobView], dict[str, dict[str, None]]]:
    give_up = time.monotonic() + GIVE_UP_S
    notes: dict[str, dict[str, None]] = {}
    while time.monotonic() < give_up:
        views = list(await api.jobs())
        if all(view["phase"] in ENDED for view in views):
            break
        for view in views:
            has = api.record(view["id"]).group.size
            if has and view["id"] in to_move and (view["progress"] or 0.0) > 1.0 / 3.0 and view["phase"] not in ENDED:
                least = to_move.pop(view["id"])
                workers = least if has > least else least + 1
                await api.scale(view["id"], low=workers, high=workers)
        for view in views:
            found = notes.setdefault(view["id"], {})
            found.update(dict.fromkeys((await api.explain(view["id"]))["notes"]))
        await asyncio.sleep(LOOK_S)
    return list(await api.jobs()), notes


def _orders(log: Path) -> dict[str, list[Shape]]:
    """The shapes of every start and every move, by job."""
    store, found = Store(log), dict[str, list[Shape]]()
    for line in store.lines():
        for order in json.loads(line)["actions"]:
            if order["type"] in ("StartJob", "ResizeJob"):
                shape = order["shape"]
                grid = None if shape["grid"] is None else Grid(**shape["grid"])
                found.setdefault(order["job_id"], []).append(Shape(**{**shape, "grid": grid}))
    store.close()
    return found
