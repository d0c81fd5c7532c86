"""The controller: drives the kernel in real time, with real nodes and real processes.

    news of the market, of agents and of users -> kernel -> orders -> provider and engine -> news

Everything happens on one event loop; only the policy thinks in a thread of its own. Events are handled in batches: all
that wait are given to the kernel, written to the store with the orders that follow, committed, and only then are the
orders carried out. So a controller that dies at any point leaves an intent behind for everything that it may have done,
and the next one reads snapshot and log, compares it with what really runs, and goes on (recovery.py).

Its parts know it as an `Inbox` (inbox.py) and not each other's insides; here they are put together.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import Event
from sublet.domain.plan import Plan, Policy
from sublet.domain.weighed import Weighing
from sublet.errors import BadInput, NotNow, SubletError
from sublet.kernel.cluster import NodePhase
from sublet.kernel.journal import header_line, line_from
from sublet.kernel.kernel import Kernel
from sublet.runtime.clock import Clock
from sublet.runtime.controller.alarms import Alarms
from sublet.runtime.controller.bill import Bill
from sublet.runtime.controller.chronicle import Chronicle
from sublet.runtime.controller.factory import RecordFactory
from sublet.runtime.controller.feasibility import Feasibility
from sublet.runtime.controller.gauges import Gauges
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.job_logs import JobLogs
from sublet.runtime.controller.job_table import JobTable
from sublet.runtime.controller.leases import Leases
from sublet.runtime.controller.lifecycle import Lifecycle
from sublet.runtime.controller.planner import LIMIT_S, Planner
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.recovery import Recovery
from sublet.runtime.controller.router import Router
from sublet.runtime.controller.snapshots import Memory
from sublet.runtime.controller.states import Hold
from sublet.runtime.controller.stored_jobs import StoredJobs
from sublet.runtime.controller.timers import Timers
from sublet.runtime.controller.waits import Waits
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import MetaKey, Store

__all__ = ["Controller"]

log = logging.getLogger("sublet.controller")
TICK_S = 0.25  # wall
SAVE_S = 2.0  # wall, between two looks at which facts of jobs have changed


class Controller:
    """See the module. Construct it with everything it needs, `await start()`, and tell it what users want."""

    def __init__(  # noqa: PLR0913 - the parts of a controller
        self,
        *,
        state_dir: Path,
        store: Store,
        provider: Provider,
        engine: Engine,
        policy: Policy,
        clock: Clock,
        budget: Budget,
        limits: dict[str, Limit] | None = None,
        decide_limit_s: float = LIMIT_S,
    ) -> None:
        self.store, self.provider, self.engine, self.clock = store, provider, engine, clock
        self.limits, self.budget = limits or {}, budget
        self.kernel = Kernel(provider.offers, limits=self.limits)  # the budget is its first event
        self.plan: Plan | None = None  # the last one
        self.plan_s = 0.0
        self.reasons: dict[str, str] = {}
        self.weighed: dict[str, tuple[float, Weighing]] = {}  # by job: when its shapes were last weighed, and how
        self.stopping = False
        self._life = int(store.get(MetaKey.LIFE) or 0)  # controllers before this one
        self._server_id = store.get(MetaKey.SERVER_ID) or secrets.token_hex(8)
        self._pending: deque[Event] = deque()
        self._pumping = self._waking = self._holding = False
        self._listening = True  # the kernel hears at once what is told
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._fatal: Exception | None = None

        table = self.table = JobTable()
        self.records = table.records
        self.bill = Bill(self.kernel, table.trains, table.has_session, table.is_doubtful, table.gpus_at_work)
        self.gauges = Gauges()
        self.alarms = Alarms(self.gauges, self.note)
        self.planner = Planner(policy, self.alarms.sound, limit_s=decide_limit_s)
        self.secret_files = SecretFiles(state_dir)
        self.logs = JobLogs(state_dir)
        self._chronicle = Chronicle(store, table.has_session)
        self._timers = Timers(self, clock)
        self.factory = RecordFactory(
            self,
            table=table,
            logs=self.logs,
            offers=provider.offers,
            clock=clock,
            state_dir=state_dir,
            server_id=self._server_id,
            life=self._life,
        )
        self.feasibility = Feasibility(self, offers=provider.offers, factory=self.factory, clock=clock)
        self.waits = Waits(self, table=table, feasibility=self.feasibility, reasons=self.reasons)
        self.jobs = Lifecycle(
            self,
            table=table,
            bill=self.bill,
            store=store,
            secret_files=self.secret_files,
            factory=self.factory,
            clock=clock,
        )
        self.router = Router(
            self,
            table=table,
            jobs=self.jobs,
            bill=self.bill,
            engine=engine,
            logs=self.logs,
            gauges=self.gauges,
            alarms=self.alarms,
            clock=clock,
            first_life=not self._life,
        )
        self.leases = Leases(
            self,
            provider=provider,
            engine=engine,
            tenants=self.router,
            store=store,
            server_id=self._server_id,
            gauges=self.gauges,
            alarms=self.alarms,
            clock=clock,
        )
        self.memory = Memory(
            self, adopt=self._adopt, table=table, jobs=self.jobs, bill=self.bill, store=store, clock=clock
        )

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Recover what an earlier controller left, or begin."""
        with self.store.transaction():
            self.store.put(MetaKey.SERVER_ID, self._server_id)
            self.store.put(MetaKey.LIFE, str(self._life + 1))
            if self.store.get(MetaKey.HEADER) is None:
                self.store.put(MetaKey.HEADER, header_line(self.provider.offers, self.limits, UNLIMITED))
        stored = StoredJobs(self, store=self.store, secret_files=self.secret_files, factory=self.factory)
        recovery = Recovery(
            loop=self,
            table=self.table,
            stored=stored,
            memory=self.memory,
            jobs=self.jobs,
            router=self.router,
            leases=self.leases,
            timers=self._timers,
            provider=self.provider,
            engine=self.engine,
            store=self.store,
            clock=self.clock,
            budget=self.budget,
            limits=self.limits,
        )
        await recovery.recover()
        self.spawn(self._ticking(), "ticking")
        self.spawn(self.leases.sweeping(), "sweeping")

    def _adopt(self, kernel: Kernel) -> None:
        """Go on with this one, which has lived already."""
        self.kernel = self.bill.kernel = kernel

    async def wait(self) -> None:
        """Until `stop` or `abandon` has done its work; raises what made it impossible to go on."""
        await self._ended.wait()
        if self._fatal is not None:
            raise self._fatal

    async def stop(self, *, end_jobs: bool = False, limit_s: float = 60.0) -> None:
        """Save and stop every job, give everything back, and end."""
        if self.stopping:
            await self._ended.wait()
            return
        self.stopping = True
        self.jobs.stop_all(end=end_jobs)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and any(  # noqa: ASYNC110 - with a deadline, and nothing sets an event
            s.gpus for s in self.kernel.jobs.values()
        ):
            await asyncio.sleep(0.05)
        for record in self.records.values():
            if record.paused is Hold.CANCEL:
                self.jobs.cancel(record, now=True)  # it has left, or has had its time
        await self.leases.release_all()
        await self._end_tasks()
        await self.jobs.forget_all_secrets(failed_too=end_jobs)
        await self.engine.close()
        await self.provider.close()
        self.jobs.save_all_facts()
        self.memory.write()
        self._ended.set()

    async def abandon(self) -> None:
        """Stop at once and for ever, as a crash would: nothing is saved, released or closed, and nobody is told.

        What was rented and what runs stays for the next controller of this state directory to find.
        """
        self.stopping = True
        self._ended.set()
        self._timers.cancel_all()
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def now_s(self) -> float:
        """Cloud time; never before the kernel's own."""
        return max(self.clock.now_s(), self.kernel.now_s)

    def add(self, job_id: str, spec: JobSpec, key: str = "") -> JobRecord:
        """Take a job; it is on disk when this returns."""
        if self._ended.is_set():
            raise self._fatal or NotNow(spec.name, "brought to a controller that has ended", "be submitted")
        try:
            record = self.jobs.add(job_id, spec, key)
        except sqlite3.Error as error:
            raise self._fail(error) from error
        if self._fatal is not None:
            raise self._fatal
        return record

    # ------------------------------------------------------------------ the inbox

    def tell(self, event: Event) -> None:
        """Something happened: the kernel hears of it now, or after what it is busy with."""
        self._pending.append(event)
        if not self._pumping and not self._ended.is_set():
            self._pump()

    def queue(self, event: Event) -> None:
        """As `tell`, for one that is heard together with others, at the next `wake`."""
        self._pending.append(event)

    def wake(self) -> None:
        """Hear what was queued as soon as everybody who speaks now has spoken: one commit for all of them."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self.carry_on)

    def note(self, row: HistoryRow) -> None:
        """Something for the history alone."""
        self._chronicle.add(row)
        self.wake()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do it beside everything else; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            if isinstance(error, sqlite3.Error):
                self._fail(error)

    # ------------------------------------------------------------------ for recovery

    def hold_orders(self, *, held: bool) -> None:
        """Orders to jobs are not carried out while it is not known who still runs."""
        self._holding = held

    def stop_listening(self) -> None:
        """The kernel hears nothing until `hear_first`."""
        self._listening = False

    def hear_first(self, sort: Callable[[list[Event]], list[Event]]) -> None:
        """Listen again, to what was told meanwhile in another order."""
        self._pending = deque(sort(list(self._pending)))
        self._listening = True
        self.carry_on()

    # ------------------------------------------------------------------ the pump

    def carry_on(self) -> None:
        """Let groups say what they have to say, now."""
        self._waking = False
        if self._listening and not self._pumping and not self._ended.is_set():
            self.router.drain()
            self._pump()

    def _pump(self) -> None:
        if not self._listening:
            return
        self._pumping = True
        try:
            while self._pending:
                orders: list[Action] = []
                with self.store.transaction():
                    while self._pending:
                        orders += self._hear(self._pending.popleft())
                    self.memory.write_if_due()
                    self._chronicle.write(self.kernel, self.kernel.now_s)
                for action in orders:
                    self.carry_out(action)
                self.router.drain()
            self._chronicle.write(self.kernel, self.now_s())
        except sqlite3.Error as error:  # nothing may be done whose intent cannot be written
            self._fail(error)
        finally:
            self._pumping = False

    def _fail(self, error: sqlite3.Error) -> BadInput:
        log.critical("the store failed: nothing more is done; agents end with their lease", exc_info=error)
        hint = "make room or repair the disk, then 'sublet up': what was done is in the log"
        self._fatal = failure = BadInput(self.store.path, f"cannot be written ({error})", hint=hint)
        self._ended.set()
        return failure

    def _hear(self, event: Event) -> list[Action]:
        if _is_old(event, self.kernel):
            return []
        if event.at_s < (earliest_s := max(self.kernel.now_s, self.bill.settled_s)):
            event = replace(event, at_s=earliest_s)
        if isinstance(event, news.NodeLost):  # before the kernel forgets who was there
            self._tell_router(event)
        try:
            actions = self.bill.handle(event)
        except SubletError as error:  # news that cannot be: the kernel is as it was before it, and so is the log
            log.exception("the kernel refused %s", event)
            self._chronicle.add(HistoryRow(kind="Refused", text=str(error)))
            return []
        self.store.append(event.at_s, line_from(event, actions))
        self.memory.heard(event, actions)
        if isinstance(event, news.NodeNoticed):
            self._tell_router(event)
        try:
            self._chronicle.tell(event, actions, self.kernel)
        except Exception as error:  # what was ordered is done, whether or not it can be told
            log.exception("%s cannot be told", type(event).__name__)
            self.alarms.sound("history", f"{type(event).__name__} is not in the history: {type(error).__name__}")
        return actions

    def _tell_router(self, event: news.NodeLost | news.NodeNoticed) -> None:
        """Those who have workers on the node must know."""
        try:
            if isinstance(event, news.NodeLost):
                self.router.node_lost(event.node_id, time.monotonic(), event.why)
            else:
                self.router.node_noticed(event)
        except Exception:  # what the kernel ordered is done all the same
            log.exception("%s of %s went wrong", type(event).__name__, event.node_id)

    # ------------------------------------------------------------------ orders

    def carry_out(self, action: Action) -> None:
        """An order of the kernel, which is in the log."""
        match action:
            case order.MakePlan():
                self.spawn(self._think(), "plan")
            case order.RentNode():
                self.spawn(self.leases.rent(action), f"rent {action.node_id}")
            case order.ReleaseNode():
                self.spawn(self.leases.release(action.node_id), f"release {action.node_id}")
            case order.SetTimer():
                self._timers.set(action)
            case order.StartJob() | order.ResizeJob() | order.StopJob():
                if not self._holding:  # else it is given when recovery is through, from the kernel's state
                    self.router.carry_out(action)
            case order.TellUser():
                log.info("%s", action.text)
            case order.RefusePlan():
                log.error("%s", action.error(self.kernel.now_s))
            case _:
                assert_never(action)

    async def _think(self) -> None:
        await asyncio.sleep(0)  # let everything of this instant be heard first
        made = await self.planner.plan(lambda: self.kernel.snapshot(frozen=True))
        self.gauges.decision_s.add(made.seconds)
        self.plan, self.plan_s = made.plan, self.now_s()
        self.reasons |= made.plan.reasons
        known = self.weighed.items()
        self.weighed = {job_id: each for job_id, each in known if job_id in self.kernel.jobs}
        self.weighed |= {job_id: (self.plan_s, each) for job_id, each in made.plan.weighed.items()}
        self.tell(news.PlanMade(self.now_s(), made.plan, made.snapshot.seen))
        self.waits.look()

    # ------------------------------------------------------------------ time

    async def _ticking(self) -> None:
        saved = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            wall_s = time.monotonic()
            try:
                self._tick(wall_s)
                if wall_s - saved > SAVE_S:
                    saved = wall_s
                    self.jobs.save_all_facts()
                    self.memory.mark()
            except sqlite3.Error as error:
                self._fail(error)
                return
            except Exception:  # one job's trouble is not everybody's
                log.exception("a tick failed")

    def _tick(self, wall_s: float) -> None:
        self.carry_on()  # what is heard already comes first
        for record in list(self.table.live.values()):
            if record.id not in self.kernel.jobs and not record.group.workers:
                self.jobs.retire(record)
            else:
                self.router.tick(record, wall_s)
        self.leases.end_unpaid()
        self.carry_on()


def _is_old(event: Event, kernel: Kernel) -> bool:
    """News of what is gone already: the worlds of the provider and of the agents are not in step with ours."""
    if isinstance(event, news.NodeReady | news.NodeNoticed | news.NodeLost | news.NodeReleased | news.RentRefused):
        node = kernel.cluster.nodes.get(event.node_id)
        if node is None:
            return True
        return isinstance(event, news.NodeReleased) and node.phase is not NodePhase.RELEASING
    if isinstance(event, news.JobFinished | news.JobFailed | news.JobCancelled | news.JobChanged):
        job_id = event.job.id if isinstance(event, news.JobChanged) else event.job_id
        return job_id not in kernel.jobs
    return False
