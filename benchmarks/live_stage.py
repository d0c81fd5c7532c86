"""The stage of the live benchmark: a controller with one real training job, and the diaries of its workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sublet.errors import Infeasible
from sublet.runtime.agent import processes
from sublet.runtime.controller.memory.records import JobRecord
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.settings import Settings

__all__ = ["SCRIPT", "Change", "Stage", "Step", "job_spec", "on_stage", "read_steps", "waited_for"]

SCRIPT = Path(__file__).with_name("live_script.py")
LOOK_S = 0.02
GIVE_UP_S = 60.0
SOME_STEPS_S = 0.5  # between two changes, so that there is a normal step to compare with
LEASE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of a diary."""

    pid: int
    generation: int
    workers: int
    rank: int
    number: int
    at_s: float  # of the machine's monotonic clock, when it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A group that became another: when that was asked for (or somebody was killed), and what took how long."""

    asked_s: float
    workers: int  # before it
    generation: int  # of the new group
    to_joined_s: float  # from when a loss was known, until rank 0 had joined the next group
    formed_s: float
    state_s: float


class Stage:
    """One job under a controller in this process, which does nothing else meanwhile."""

    def __init__(self, api: ControllerApi, home: Path, record: JobRecord, settings: Settings) -> None:
        self.api, self.home, self.record = api, home, record
        self._most, self._boot_s = settings.most_nodes, settings.boot_s

    async def resize(self, workers: int) -> Change:
        """A planned change, ordered as `sublet scale` does."""

        async def scale() -> None:
            await self.api.scale(self.record.id, low=workers, high=workers)

        change = await self._changed(scale)
        await self.trained(workers)
        return change

    async def kill(self, node_id: str, *, whole: bool) -> Change:
        """SIGKILL to an instance or to the one worker on it; returns when the job has its full width again."""
        record = self.home / "state" / "nodes" / f"{node_id}.json"
        agent = json.loads(record.read_text(encoding="utf-8"))

        async def strike() -> None:
            if whole:
                await asyncio.to_thread(processes.kill_instance, agent["pid"], agent["start"])
            else:
                for process in processes.instance(agent["pid"], agent["start"])[1:]:
                    os.kill(process.pid, signal.SIGKILL)

        change = await self._changed(strike)
        with contextlib.suppress(Infeasible):  # the policy may find that fewer are faster on this machine
            await waited_for(lambda: self.record.group.size == self._most, "full width", 2.0 + 2.0 * self._boot_s)
        await self.trained(self.record.group.size)
        return change

    async def trained(self, workers: int) -> None:
        """Returns when so many have made some steps together."""
        group = self.record.group

        def reported() -> bool:
            joined, stepped = group.joined, group.stepped
            together = group.size == workers and joined is not None and joined.generation == group.round.number
            return together and stepped is not None and stepped.generation == group.round.number

        await waited_for(lambda: bool(self.record.outcome) or reported(), f"steps of {workers} workers")
        await asyncio.sleep(SOME_STEPS_S)

    @property
    def nodes(self) -> list[str]:
        """Where its workers are."""
        return [worker.node_id for worker in self.record.group.workers.values()]

    def steps(self) -> list[Step]:
        """All that its workers have written, in order of time."""
        return read_steps(self.home / "diaries")

    async def _changed(self, order: Callable[[], Awaitable[None]]) -> Change:
        """Give the order, and wait until the job trains in another group."""
        group, pauses_s = self.record.group, len(self.record.pauses_s)
        workers, before = group.size, group.joined
        asked_s = time.monotonic()
        await order()
        await waited_for(lambda: group.joined is not before, "another group")
        joined = group.joined
        assert joined is not None
        return Change(
            asked_s=asked_s,
            workers=workers,
            generation=joined.generation,
            to_joined_s=self.record.pauses_s[pauses_s],
            formed_s=joined.formed_s,
            state_s=joined.state_s,
        )


@asynccontextmanager
async def on_stage(
    mode: str, *, workers: int, low: int, boot_s: float = 0.0, more: tuple[str, ...] = ()
) -> AsyncIterator[Stage]:
    """A job of the benchmark's script that trains with so many workers; afterwards nothing is left of it."""
    home = Path(tempfile.mkdtemp(prefix="sublet-bench-"))
    (home / "diaries").mkdir()
    settings = Settings(state_dir=str(home / "state"), most_nodes=workers, boot_s=boot_s, lease_s=LEASE_S)
    api = controller_from(settings)
    running = asyncio.create_task(api.run())
    try:
        await asyncio.wait_for(api.started(), GIVE_UP_S)
        found = await api.submit(job_spec(home, mode, low=low, high=workers, more=more))
        stage = Stage(api, home, api.record(found["job_id"]), settings)
        await stage.trained(workers)
        yield stage
    finally:
        await api.shutdown(end_jobs=True)
        await running
        shutil.rmtree(home, ignore_errors=True)


def job_spec(home: Path, mode: str, *, low: int, high: int, more: tuple[str, ...] = ()) -> JobSpec:
    """The benchmark's script as a job; it may lose workers as often as it likes."""
    return JobSpec(
        name="bench",
        argv=(sys.executable, str(SCRIPT), mode, str(home / "diaries"), *more),
        cwd=str(home),
        env={"OMP_NUM_THREADS": "1"},
        min_workers=low,
        max_workers=high,
        retries=Retries(infra=None),
    )


def read_steps(folder: Path) -> list[Step]:
    """The diaries of a folder, in order of time; a line that is being written is left out."""
    found = []
    for path in folder.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            facts = line.split()
            if line.endswith("\n"):
                generation, workers, rank, number = map(int, facts[:4])
                found.append(
                    Step(
                        pid=int(path.name),
                        generation=generation,
                        workers=workers,
                        rank=rank,
                        number=number,
                        at_s=float(facts[4]),
                    )
                )
    return sorted(found, key=lambda step: step.at_s)


async def waited_for(happened: Callable[[], bool], what: str, patience_s: float = GIVE_UP_S) -> None:
    """Look until it has, within reason."""
    give_up_s = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > give_up_s:
            raise Infeasible(f"no {what} within {patience_s:g} s", binding="seconds", needed=1.0, available=0.0)
        await asyncio.sleep(LOOK_S)
