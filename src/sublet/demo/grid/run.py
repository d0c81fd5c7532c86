"""One job of the paced script in parts, under a real controller on this machine, and all that was seen of it."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sublet.demo.grid.diaries import Row, read_rows
from sublet.demo.grid.moves import Move, moves_seen
from sublet.domain.job import Job
from sublet.domain.plan import Policy
from sublet.errors import Infeasible
from sublet.runtime.controller.memory import kernel_job
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.controller_api.views import ENDED, JobView
from sublet.runtime.jobs.bounds import MarketChoice
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings

Tell = Callable[[str], None]  # the present run, for progress messages

SCRIPT = Path(__file__).with_name("script.py")
LOOK_S, TELL_S = 0.2, 5.0
GIVE_UP_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJob:
    """A job of the paced script."""

    samples: int
    epochs: int = 1
    batch: int = 24
    blocks: int = 6
    unit_ms: float = 9.0
    stages: int = 3  # 0 = as many as the plan finds best
    fits_in: int = 1  # in fewer parts than this it runs out of memory
    least: int = 3
    most: int = 7

    @property
    def steps(self) -> int:
        """In all."""
        return self.epochs * -(-self.samples // self.batch)

    def spec(self, diaries: Path) -> JobSpec:
        """As it is submitted; its workers write to `diaries`."""
        flags = {
            "--samples": self.samples,
            "--epochs": self.epochs,
            "--batch": self.batch,
            "--blocks": self.blocks,
            "--unit-ms": self.unit_ms,
            "--fits-in": self.fits_in,
        }
        return JobSpec(
            name="gpt",
            argv=(
                sys.executable,
                str(SCRIPT),
                str(diaries),
                *(str(part) for flag in flags.items() for part in flag),
            ),
            cwd=str(diaries.parent),
            env={"OMP_NUM_THREADS": "1"},
            min_workers=self.least,
            max_workers=self.most,
            stages=self.stages,
            market=MarketChoice.SPOT,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """The real run. `events` are in cloud time; `zero_s` is when that began, by the monotonic clock."""

    view: JobView
    rows: tuple[Row, ...]
    events: tuple[Mapping[str, Any], ...]
    cost: Mapping[str, Any]
    job: Job  # with the speeds and pauses that were measured
    kinds: Mapping[str, int]  # of changes, as the controller counted them
    zero_s: float
    speedup: float

    @property
    def boot_s(self) -> float:
        """Boot of a node, cloud time."""
        return fmean(boots_s(self.events))

    @property
    def start_s(self) -> float:
        """From the order to start the job to its first micro-batch, cloud time: processes, imports, a first meeting."""
        asked_s = next(event["at_s"] for event in self.events if event["kind"] == "StartJob")
        return self.speedup * (min(row.since_s for row in self.rows) - self.zero_s) - float(asked_s)

    @property
    def moves(self) -> list[Move]:
        """In order of time."""
        return moves_seen(self.events, self.rows, self.speedup, self.zero_s)

    def samples_between(self, since_s: float, until_s: float, batch: int) -> float:
        """Samples of steps that ended between two instants of cloud time."""
        ended = {row.step: self.speedup * (row.at_s - self.zero_s) for row in self.rows}
        return float(batch * sum(since_s <= at_s < until_s for at_s in ended.values()))


def live(
    settings: Settings, job: GridJob, tell: Tell, *, policy: Policy | None = None, until_s: float | None = None
) -> Lived:
    """To the end of the job, or to `until_s` of cloud time; `policy` instead of that of the settings."""
    home = Path(tempfile.mkdtemp(prefix="sublet-grid-"))
    try:
        (home / "diaries").mkdir()
        return asyncio.run(_live(settings, job, home / "diaries", tell, policy, until_s))
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def _live(
    settings: Settings, job: GridJob, diaries: Path, tell: Tell, policy: Policy | None, until_s: float | None
) -> Lived:
    api = controller_from(settings, policy)
    running = asyncio.create_task(api.run())
    try:
        await asyncio.wait([running, asyncio.create_task(api.started())], return_when=asyncio.FIRST_COMPLETED)
        zero_s = time.monotonic() - (await api.health())["now_s"] / settings.speedup
        job_id = (await api.submit(job.spec(diaries)))["job_id"]
        view = await _follow(api, running, job_id, tell, until_s)
        events = tuple(await api.events(limit=100_000))
        record, cost = api.record(job_id), await api.cost()
        known = kernel_job(record, settings.speedup)
        kinds = {kind: changes.count for kind, changes in record.grids.changes.items()}
    finally:
        await api.shutdown(end_jobs=True)
        await running
    return Lived(
        view=view,
        rows=tuple(read_rows(diaries)),
        events=events,
        cost=dict(cost),
        job=known,
        kinds=kinds,
        zero_s=zero_s,
        speedup=settings.speedup,
    )


async def _follow(
    api: ControllerApi, running: asyncio.Task[None], job_id: str, tell: Tell, until_s: float | None
) -> JobView:
    began = told_s = time.monotonic()
    while time.monotonic() < began + GIVE_UP_S and not running.done():
        await asyncio.sleep(LOOK_S)
        view, now_s = await api.job(job_id), (await api.health())["now_s"]
        if time.monotonic() > told_s + TELL_S:
            told_s = time.monotonic()
            spares = f" + {view['spares']} spare" if view["spares"] else ""
            tell(f"{view['phase']}: {view['grid'] or 'no grid'}{spares}, step {view['step']}")
        if view["phase"] in ENDED or (until_s is not None and now_s >= until_s):
            return view
    raise Infeasible("the live run did not end", binding="seconds", needed=GIVE_UP_S, available=GIVE_UP_S)


def boots_s(events: Sequence[Any]) -> list[float]:
    """From the order of a node to its first use, of each."""
    asked = {e["node_id"]: e["at_s"] for e in events if e["kind"] == "RentNode"}
    return [e["at_s"] - asked[e["node_id"]] for e in events if e["kind"] == "NodeReady"]


def marks(events: Sequence[Mapping[str, Any]], speedup: float) -> list[tuple[float, str]]:
    """Notices and losses without one, in wall seconds of the run."""
    noticed = {event["node_id"] for event in events if event["kind"] == "NodeNoticed"}
    found = [(event["at_s"] / speedup, "notice") for event in events if event["kind"] == "NodeNoticed"]
    lost = (event for event in events if event["kind"] == "NodeLost" and event["node_id"] not in noticed)
    return sorted([*found, *((event["at_s"] / speedup, "kill") for event in lost)])
