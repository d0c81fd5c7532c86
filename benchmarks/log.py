"""What a start costs after a long life: `python -m benchmarks.log [EVENTS ...] [--uncut]`.

The real kernel, bill, pump, snapshots and store live through as many events as are asked for (jobs of a hundred events
each: plans, prices, progress, one node), half a minute of cloud time apart; a million are most of a year. Then the real
controller starts from what is left. `--uncut` keeps every line in the log, for comparison.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sublet import plugins
from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action, RefusePlan
from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.events import Event
from sublet.domain.money import Price
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core.loop import Controller
from sublet.runtime.controller.host import PACES, HostServices, Options, Paces
from sublet.runtime.controller.inbox import Ending
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.store import Store, connect_file
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer

OFFERS = (one_gpu_offer("spot", 0.5), one_gpu_offer("on-demand", 1.5))
LIMITS = {"spot": Limit(max_nodes=4), "on-demand": Limit(max_nodes=4)}
EVENT_EVERY_S = 30.0  # cloud time
EVENTS_A_JOB = 100
UNCUT = Paces(events_a_file=10**9, history_kept=10**9, jobs_kept=10**9)


class Fast:
    """A wall clock that is told what time it is."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """As it was told."""
        return self.now_s

    def unix(self) -> float:
        """The same, from the autumn of 2025 on."""
        return 1.76e9 + self.now_s

    def since_boot(self) -> tuple[str, float]:
        """Not known."""
        return "", 0.0


class Answers:
    """The world: whatever is ordered has happened."""

    def __init__(self, controller: Controller, wall: Fast) -> None:
        self.controller, self.wall = controller, wall
        self.policy = plugins.load("sublet.policies", "max-speedup")()  # type: ignore[operator]

    def after_notice(self, event: news.NodeNoticed) -> None:
        """No job is there."""

    def before_loss(self, _event: news.NodeLost | news.NodeSilent) -> tuple[Event, ...]:
        """No job is there."""
        return ()

    def take_plan(self, event: news.PlanMade, refusal: RefusePlan | None) -> None:
        """As it comes."""

    def drain(self) -> None:
        """Nobody speaks."""

    def carry_out(self, action: Action) -> None:
        """It is done, half a minute later."""
        kernel, inbox, now_s = self.controller.kernel, self.controller.inbox, self.controller.now_s
        self.wall.now_s += EVENT_EVERY_S
        match action:
            case order.MakePlan():
                plan = self.policy.decide(kernel.snapshot())
                inbox.queue(news.PlanMade(now_s(), plan, kernel.seen))
            case order.RentNode(node_id=node_id):
                inbox.queue(news.NodeReady(now_s(), node_id))
            case order.ReleaseNode(node_id=node_id):
                inbox.queue(news.NodeReleased(now_s(), node_id))
            case order.StartJob(job_id=job_id, generation=generation):
                inbox.queue(news.JobStarted(now_s(), job_id, generation, 0.0, now_s()))
            case order.ResizeJob(job_id=job_id, generation=generation):
                inbox.queue(news.JobResized(now_s(), job_id, generation, 0.0, now_s()))
            case order.StopJob(job_id=job_id, generation=generation):
                inbox.queue(news.JobStopped(now_s(), job_id, generation, 0.0))
            case _:
                pass


def quick_file(path: Path) -> sqlite3.Connection:
    """A store whose making is not what is measured."""
    db = connect_file(path)
    db.execute("PRAGMA synchronous=OFF")
    return db


async def live(folder: Path, events: int, paces: Paces) -> None:
    """So many events, and a controller that stops."""
    store, wall = Store(folder / "log.sqlite", connect=quick_file), Fast()
    clock = Clock(wall=wall)
    cloud = MemoryCloud(OFFERS, clock)
    policy = plugins.load("sublet.policies", "max-speedup")()  # type: ignore[operator]
    host, options = HostServices(state_dir=folder, clock=clock, paces=paces), Options(budget=UNLIMITED, limits=LIMITS)
    controller = Controller(store, cloud.provider, cloud.engine, policy, host=host, options=options)
    world = Answers(controller, wall)
    controller.recovery().claim(controller.holder, controller.identity, options, 0.0)  # its world is made of answers
    inbox = controller.inbox
    inbox.connect(journal=controller.memory, departures=world, outlet=world, alarms=controller.alarms)
    inbox.tell(news.BudgetChanged(0.0, UNLIMITED))
    number = 0
    while controller.kernel.seen < events:
        number += 1
        _one_job(controller, wall, number)
        if number % 20 == 0:
            await asyncio.sleep(0)
        while controller.compaction.busy:  # noqa: ASYNC110 - a thread that ends
            await asyncio.sleep(0.001)
    controller.memory.write()
    await inbox.end_tasks()
    store.close()


def _one_job(controller: Controller, wall: Fast, number: int) -> None:
    job_id, inbox = f"job-{number}", controller.inbox
    until = controller.kernel.seen + EVENTS_A_JOB
    record = controller.add(job_id, JobSpec(name="job", argv=("x",), cwd="/", max_workers=1))
    while controller.kernel.seen < until - 6:
        for turn in range(10):
            wall.now_s += EVENT_EVERY_S
            now_s = controller.now_s()
            if turn == 0:
                price = Price.from_usd_per_h(0.5 + 0.01 * (number * 7 % 20))
                inbox.queue(news.PriceChanged(now_s, "spot", price))
            else:
                inbox.queue(news.ProgressReported(now_s, job_id, turn / 20))
        inbox.carry_on()
    record.outcome, record.ended_s = Ending.FINISHED, controller.now_s()
    controller.jobs.save_facts(record)
    inbox.tell(news.JobFinished(controller.now_s(), job_id))
    controller.jobs.retire(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one start."""

    events: int
    jobs: int
    live_s: float  # processor, to make the life
    start_s: float  # from the opened file to a controller that takes jobs; the best of three
    open_s: float  # of it, until the file is opened
    store_mb: float
    archive_mb: float
    tail: int  # events in the log
    spent_usd: float


def measure(events: int, paces: Paces = PACES) -> Figures:
    """One life, and the start after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        folder.mkdir()
        cpu = time.process_time()
        asyncio.run(live(folder, events, paces))
        live_s = time.process_time() - cpu
        runs = [asyncio.run(_start(folder, paces)) for _ in range(3)]
        store = Store(folder / "log.sqlite")
        tail = sum(1 for _ in store.lines())
        store.close()
        sizes = {path.name: path.stat().st_size / 1e6 for path in folder.iterdir() if path.is_file()}
        start_s, open_s, jobs, seen, spent_usd = min(runs)
        return Figures(
            events=seen,
            jobs=jobs,
            live_s=live_s,
            start_s=start_s,
            open_s=open_s,
            store_mb=sum(size for each, size in sizes.items() if each.startswith("log.sqlite")),
            archive_mb=sum(size for each, size in sizes.items() if each.endswith(".gz")),
            tail=tail,
            spent_usd=spent_usd,
        )


async def _start(folder: Path, paces: Paces) -> tuple[float, float, int, int, float]:
    began = time.perf_counter()
    Store(folder / "log.sqlite").close()
    open_s = time.perf_counter() - began
    store = Store(folder / "log.sqlite")
    clock = Clock(began_s=store.last_s())
    store.close()
    policy = plugins.load("sublet.policies", "max-speedup")()  # type: ignore[operator]
    cloud = MemoryCloud(OFFERS, clock)
    began = time.perf_counter()
    with api_over(cloud, folder, policy, limits=LIMITS, paces=paces) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        start_s = time.perf_counter() - began
        jobs, budget = await api.jobs(), await api.budget()
        seen = api._controller.kernel.seen  # noqa: SLF001 - a figure that nobody else needs
        await api._controller.abandon()  # noqa: SLF001
        await cloud.close()
        await asyncio.gather(running, return_exceptions=True)
    return start_s, open_s, len(jobs), seen, budget["spent_usd"]


def table(sizes: list[int], paces: Paces = PACES) -> None:
    """A line for each size."""
    print("a start after a long life" + (", nothing cut from the log" if paces is UNCUT else ""))
    print("    events  jobs at hand   start s   open s  store MB  archive MB     tail  made in s       USD")
    for events in sizes:
        found = measure(events, paces)
        print(
            f"{found.events:>10,} {found.jobs:>13,} {found.start_s:>9.3f} {found.open_s:>8.3f} {found.store_mb:>9.2f}"
            f" {found.archive_mb:>11.2f} {found.tail:>8,} {found.live_s:>10.1f} {found.spent_usd:>9,.2f}",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    sizes = [int(each) for each in sys.argv[1:] if each != "--uncut"]
    table(sizes or [1_000, 10_000, 100_000, 1_000_000], UNCUT if "--uncut" in sys.argv else PACES)


if __name__ == "__main__":
    main()
