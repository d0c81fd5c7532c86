"""The controller: drives the kernel in real time, with real nodes and real processes.

    news of the market, of agents and of users -> kernel -> orders -> provider and engine -> news

Everything happens on one event loop; only the policy thinks in a thread of its own. Events are handled in batches: all
that wait are given to the kernel, written to the store with the orders that follow, committed, and only then are the
orders carried out. So a controller that dies at any point leaves an intent behind for everything that it may have done,
and the next one reads snapshot and log, compares it with what really runs, and goes on (recovery.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import Event
from sublet.domain.plan import Phase, Plan, Policy
from sublet.domain.timers import Timer
from sublet.domain.weighed import Weighing
from sublet.errors import BadInput, SubletError
from sublet.kernel.cluster import NodePhase
from sublet.kernel.journal import header_line, line_from
from sublet.kernel.kernel import Kernel
from sublet.runtime.clock import Clock
from sublet.runtime.controller.alarms import Alarms
from sublet.runtime.controller.bill import Bill
from sublet.runtime.controller.gauges import Gauges
from sublet.runtime.controller.history import (
    HistoryRow,
    Progress,
    SupplyNews,
    row_from_event,
    row_from_order,
    rows_from_plan,
)
from sublet.runtime.controller.leases import Leases
from sublet.runtime.controller.planner import LIMIT_S, Planner
from sublet.runtime.controller.records import GIVEN_UP, JobRecord, kernel_job
from sublet.runtime.controller.router import Router
from sublet.runtime.controller.snapshots import Memory
from sublet.runtime.controller.waits import Waits
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.jobs.serialize import spec_to_json
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import Store
from sublet.wire import messages as wire

__all__ = ["Controller"]

log = logging.getLogger("sublet.controller")
TICK_S = 0.25  # wall
SAVE_S = 2.0  # wall, between two looks at which facts of jobs have changed
FOR_GOOD = ("finished", "cancelled")  # how a job ends that never runs again
LAST_S = 2.0  # wall, before the latest end of a node's bill: time to end it whatever is still on it


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
        self.state_dir, self.store, self.provider, self.engine = state_dir, store, provider, engine
        self.clock = clock
        self.limits, self.budget = limits or {}, budget
        self.kernel = Kernel(provider.offers, limits=self.limits)  # the budget is its first event
        self.bill = Bill(self.kernel, self._trains, self._tells, self._doubts, self._working)
        self.records: dict[str, JobRecord] = {}  # every job ever, by id
        self.live: dict[str, JobRecord] = {}  # those that have not ended, or whose workers have not
        self.submitted: set[str] = set()  # jobs that the kernel has heard of
        self.gauges = Gauges()
        self.alarms = Alarms(self.gauges, self.note)
        self.planner = Planner(policy, self.alarms.sound, limit_s=decide_limit_s)
        self.secret_files = SecretFiles(state_dir)
        self.waits = Waits(self)
        self.plan: Plan | None = None  # the last one
        self.plan_s = 0.0
        self.reasons: dict[str, str] = {}
        self.weighed: dict[str, tuple[float, Weighing]] = {}  # by job: when its shapes were last weighed, and how
        self._supply_news, self._progress = SupplyNews(), Progress(self._tells)
        self.stopping = self.replaying = self.holding = False
        self.listening = True  # the kernel hears at once what is told
        self.life = int(store.get("life") or 0)  # controllers before this one
        self.server_id = store.get("server_id") or secrets.token_hex(8)
        self.doomed_s: dict[str, float] = {}  # node -> when it will be taken
        self._pending: deque[Event] = deque()
        self._pumping = self._soon = False
        self._rows: list[HistoryRow] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._ended = asyncio.Event()
        self._fatal: Exception | None = None
        self.router, self.leases, self.memory = Router(self), Leases(self), Memory(self)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Recover what an earlier controller left, or begin."""
        from sublet.runtime.controller.recovery import recover  # it needs this module's class

        with self.store.together():
            self.store.put("server_id", self.server_id)
            self.store.put("life", str(self.life + 1))
            if self.store.get("header") is None:
                self.store.put("header", header_line(self.provider.offers, self.limits, UNLIMITED))
        await recover(self)
        self.spawn(self._ticking(), "ticking")
        self.spawn(self.leases.sweeping(), "sweeping")

    def adopt(self, kernel: Kernel) -> None:
        """Go on with this one, which has lived already."""
        self.kernel = self.bill.kernel = kernel

    async def wait(self) -> None:
        """Until `stop` has done its work; raises what made it impossible to go on."""
        await self._ended.wait()
        if self._fatal is not None:
            raise self._fatal

    async def stop(self, *, end_jobs: bool = False, limit_s: float = 60.0) -> None:
        """Save and stop every job, give everything back, and end."""
        if self.stopping:
            await self._ended.wait()
            return
        self.stopping = True
        for record in list(self.records.values()):
            if record.id in self.kernel.jobs:
                try:
                    if end_jobs:
                        self.cancel(record)
                    else:
                        self.tell(news.JobChanged(self.now_s(), replace(self._job(record), paused=True)))
                except Exception:  # one job's trouble must not keep everybody's nodes rented
                    log.exception("%s cannot be told to stop: it ends with its nodes", record.id)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and any(  # noqa: ASYNC110 - with a deadline, and nothing sets an event
            s.gpus for s in self.kernel.jobs.values()
        ):
            await asyncio.sleep(0.05)
        for record in self.records.values():
            if record.paused == "cancel":
                self.cancel(record, now=True)  # it has left, or has had its time
        await asyncio.gather(*(self.leases.release(node_id) for node_id in list(self.kernel.cluster.nodes)))
        for left in await self.provider.list():
            if not left.elsewhere:
                await self.provider.release(left.node_id)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for record in self.records.values():
            ended = record.outcome in FOR_GOOD or (record.outcome == "failed" and (end_jobs or record.closed))
            if ended and self.secret_files.has(record.id):
                await asyncio.to_thread(self.secret_files.forget, record.id, record.spec.secrets)
        await self.engine.close()
        await self.provider.close()
        self._save_all_facts()
        self.memory.write()
        self._ended.set()

    def now_s(self) -> float:
        """Cloud time; never before the kernel's own."""
        return max(self.clock.now_s(), self.kernel.now_s)

    # ------------------------------------------------------------------ what users want

    def add(self, job_id: str, spec: JobSpec, key: str = "") -> JobRecord:
        """Take a job; it is on disk when this returns."""
        if self._fatal is not None:
            raise self._fatal
        record = self.router.new_record(job_id, spec, self.now_s())
        self.secret_files.keep(job_id, spec.secrets)
        try:
            with self.store.together():
                self.store.add_job(job_id, key, json.dumps(spec_to_json(spec, secrets=False)))
                self.store.change_job(job_id, facts=json.dumps(record.facts()))
        except sqlite3.Error as error:
            raise self._give_up(error) from error
        self.keep(record)
        self.submit(record)
        if self._fatal is not None:
            raise self._fatal
        return record

    def keep(self, record: JobRecord) -> None:
        """Know of a job from now on."""
        self.records[record.id] = self.live[record.id] = record

    def submit(self, record: JobRecord) -> None:
        """Let the kernel hear of it."""
        self.submitted.add(record.id)
        self.tell(news.JobSubmitted(max(record.submitted_s, self.kernel.now_s), self._job(record)))

    def revive(self, record: JobRecord) -> None:
        """One that failed is tried once more, from where it was, with all its retries."""
        if record.id in self.kernel.jobs or record.group.workers:
            return  # it runs, or is on its way out
        old = record.group
        record.group = self.router.new_record(record.id, record.spec, record.submitted_s).group
        record.group.round = old.round  # no later round may be mistaken for an earlier one
        record.group.step = min(old.step, record.checkpoint_step or 0)  # what was beyond it is lost, and billed so
        record.group.done, record.group.work = old.done, old.work
        record.outcome, record.ended_s, record.error, record.exit_code = "", None, "", None
        record.paused, record.forgiven, record.blamed = "", record.noticed + record.unnoticed, ""
        self.keep(record)
        self.save_facts(record)
        self.submit(record)

    def cancel(self, record: JobRecord, *, now: bool = False) -> None:
        """It is not wanted any more: it saves and leaves as if it were paused, and is ended then; `now`, at once."""
        state = self.kernel.jobs.get(record.id)
        if state is None:
            if record.outcome == "failed" and not record.closed:
                self._close(record)
            return
        if not now and state.phase is not Phase.WAITING:
            if record.paused != "cancel":
                text = "is to end: it saves first" if record.spec.sdk else "is to end"
                self.note(HistoryRow(kind="Cancelling", job_id=record.id, text=text))
                self.change(record, paused="cancel")
            return
        self.throw_away(record)
        record.outcome, record.ended_s = "cancelled", self.now_s()
        self.tell(news.JobCancelled(self.now_s(), record.id))
        self.save_facts(record)

    def _close(self, record: JobRecord) -> None:
        """One that failed has ended for good from now on: nobody resumes it, so nobody needs its secrets."""
        record.closed = True
        self.note(
            HistoryRow(kind="Closed", job_id=record.id, text="has failed for good: it cannot be resumed any more")
        )
        self.save_facts(record)
        if record.id not in self.live:  # else with its last worker
            self._forget_secrets(record)

    def give_up(self, record: JobRecord, why: str) -> None:
        """It has had all its retries: it saves and leaves, has failed then, and can be resumed."""
        state = self.kernel.jobs.get(record.id)
        if state is None:
            return
        if state.phase is not Phase.WAITING:
            if record.paused != GIVEN_UP:
                leaves = "saves and leaves" if record.spec.sdk else "leaves"
                self.note(HistoryRow(kind="GivenUp", job_id=record.id, text=f"{leaves}: {why}"))
                self.change(record, paused=GIVEN_UP)
            return
        self.throw_away(record)
        record.outcome, record.ended_s, record.error = "failed", self.now_s(), why
        self.tell(news.JobFailed(self.now_s(), record.id, why))
        self.save_facts(record)

    def throw_away(self, record: JobRecord) -> None:
        """It ends unfinished: what it has done since its last checkpoint goes with it."""
        self.bill.settle_job(record.id, self.now_s())
        lost = record.group.step - (record.checkpoint_step or 0)
        if record.spec.sdk and lost > 0:
            record.steps_lost += lost
            self.bill.thrown_away(record.id, lost, record.group.step)

    def change(self, record: JobRecord, **facts: Any) -> None:
        """Other widths, paused or not: the kernel hears of it."""
        for name, value in facts.items():
            setattr(record, name, value)
        record.group.spec = record.spec
        if "spec" in facts:
            record.any_width()  # its owner knows better
        with self.store.together():
            self.store.change_job(record.id, spec=json.dumps(spec_to_json(record.spec, secrets=False)))
            self.save_facts(record)
        self.relearn(record)
        self.carry_on()

    def relearn(self, record: JobRecord) -> None:
        """Tell the kernel what is known of the job now."""
        if record.id in self.kernel.jobs:
            record.told = dict(record.rates)
            self.queue(news.JobChanged(self.now_s(), self._job(record)))
            self.soon()

    def _job(self, record: JobRecord) -> Any:
        job = kernel_job(record, self.clock.speedup)
        return replace(job, paused=True) if self.stopping else job  # whatever is learned now: nobody is let go on

    # ------------------------------------------------------------------ the pump

    def tell(self, event: Event) -> None:
        """Something happened: the kernel hears of it now, or after what it is busy with."""
        self._pending.append(event)
        if not self._pumping and self._fatal is None:
            self._pump()

    def queue(self, event: Event) -> None:
        """As `tell`, for one that is told together with others."""
        self._pending.append(event)

    def soon(self) -> None:
        """Hear what was queued as soon as everybody who speaks now has spoken: one commit for all of them."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self.carry_on)

    def note(self, row: HistoryRow) -> None:
        """Something for the history alone."""
        self._rows.append(row)
        self.soon()

    def hear_first(self, sort: Callable[[list[Event]], list[Event]]) -> None:
        """Listen again, to what was told meanwhile in another order."""
        self._pending = deque(sort(list(self._pending)))
        self.listening = True
        self.carry_on()

    def _pump(self) -> None:
        if not self.listening:
            return
        self._pumping = True
        try:
            while self._pending:
                orders: list[Action] = []
                with self.store.together():
                    while self._pending:
                        orders += self._hear(self._pending.popleft())
                    self.memory.write_if_due()
                    self._write_history(self.kernel.now_s)
                for action in orders:
                    self._obey(action)
                self.router.drain()
            self._write_history(self.now_s())
        except sqlite3.Error as error:  # nothing may be done whose intent cannot be written
            self._give_up(error)
        finally:
            self._pumping = False

    def _give_up(self, error: sqlite3.Error) -> BadInput:
        log.critical("the store failed: nothing more is done; agents end with their lease", exc_info=error)
        hint = "make room or repair the disk, then 'sublet up': what was done is in the log"
        self._fatal = failure = BadInput(self.store.path, f"cannot be written ({error})", hint=hint)
        self._ended.set()
        return failure

    def _hear(self, event: Event) -> list[Action]:
        if self._is_old(event):
            return []
        if event.at_s < (earliest_s := max(self.kernel.now_s, self.bill.settled_s)):
            event = replace(event, at_s=earliest_s)
        try:
            actions = self.bill.handle(event)
        except SubletError as error:  # news that cannot be: the kernel is as it was before it, and so is the log
            log.exception("the kernel refused %s", event)
            self._rows.append(HistoryRow(kind="Refused", text=str(error)))
            return []
        self.store.append(event.at_s, line_from(event, actions))
        self.memory.heard(event, actions)
        try:
            self._rows += self._rows_from(event, actions)
        except Exception as error:  # what was ordered is done, whether or not it can be told
            log.exception("%s cannot be told", type(event).__name__)
            self.alarms.sound("history", f"{type(event).__name__} is not in the history: {type(error).__name__}")
        return actions

    def _rows_from(self, event: Event, actions: Sequence[Action]) -> list[HistoryRow]:
        """What people are told of it; nothing that is done depends on it."""
        told = not isinstance(event, news.AvailabilityChanged) or self._supply_news.matter(event, self.kernel)
        rows = rows_from_plan(event.plan) if isinstance(event, news.PlanMade) else []
        happened = row_from_event(event, self.kernel, self._progress)
        for row in (happened, *(row_from_order(action, self.kernel, self._progress) for action in actions)):
            if row is not None and (told or row.kind != "AvailabilityChanged"):
                rows.append(row)
        return rows

    def _is_old(self, event: Event) -> bool:
        """News of what is gone already: the worlds of the provider and of the agents are not in step with ours."""
        if isinstance(event, news.NodeReady | news.NodeNoticed | news.NodeLost | news.NodeReleased | news.RentRefused):
            node = self.kernel.cluster.nodes.get(event.node_id)
            if node is None:
                return True
            return isinstance(event, news.NodeReleased) and node.phase is not NodePhase.RELEASING
        if isinstance(event, news.JobFinished | news.JobFailed | news.JobCancelled | news.JobChanged):
            job_id = event.job.id if isinstance(event, news.JobChanged) else event.job_id
            return job_id not in self.kernel.jobs
        return False

    def _write_history(self, now_s: float) -> None:
        if not self._rows:
            return
        kernel, at = self.kernel, datetime.now(UTC).isoformat(timespec="milliseconds")
        ready = sum(kernel.cluster.held.values())
        burn, spent = kernel.ledger.burn().usd_per_h, kernel.ledger.spent(now_s).usd
        rows = []
        for row in self._rows:
            workers = row.workers
            if workers is None and row.job_id in kernel.jobs:
                workers = kernel.jobs[row.job_id].gpus
            facts = {"workers": workers, "nodes_held": ready, "usd_per_h": burn, "usd_total": spent}
            text = row.text.encode(errors="replace").decode()  # half a character is no text to the store
            rows.append((now_s, at, row.kind, row.job_id, row.node_id, text, json.dumps(facts)))
        self._rows.clear()
        with self.store.together():
            self.store.tell(rows)

    # ------------------------------------------------------------------ orders

    def carry_out(self, action: Action) -> None:
        """An order that an earlier controller gave and perhaps did not carry out."""
        self._obey(action)

    def carry_on(self) -> None:
        """Let groups say what they have to say."""
        self._soon = False
        if self._fatal is None and self.listening and not self._pumping:
            self.router.drain()
            self._pump()

    async def release_lost(self, node_id: str) -> None:
        """End a node that does not answer; the kernel hears that it is lost."""
        self.router.node_lost(node_id, time.monotonic())
        await self.leases.release(node_id)

    def _obey(self, action: Action) -> None:
        match action:
            case order.MakePlan():
                self.spawn(self._think(), "plan")
            case order.RentNode():
                self.spawn(self.leases.rent(action), f"rent {action.node_id}")
            case order.ReleaseNode():
                self.spawn(self.leases.release(action.node_id), f"release {action.node_id}")
            case order.SetTimer():
                self._set_timer(action)
            case order.StartJob() | order.ResizeJob() | order.StopJob() if self.holding:
                pass  # given when recovery is through, from the kernel's state
            case order.StartJob() | order.ResizeJob():
                record = self.records[action.job_id]
                self.router.touch(record)
                if isinstance(action, order.ResizeJob):
                    record.resizes += 1
                    self.gauges.count_resize(self.router.why_resize(record, action))
                batch = action.shape.batch or 0
                record.group.move(action.generation, action.placement, batch, time.monotonic())
            case order.StopJob():
                record = self.records[action.job_id]
                self.router.touch(record)
                record.group.stop(action.generation, resumable=action.resumable, wall_s=time.monotonic())
            case order.TellUser():
                log.info("%s", action.text)
            case order.RefusePlan():
                log.error("%s", action.error(self.kernel.now_s))

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

    def resume_timer(self, action: order.SetTimer) -> None:
        """One that an earlier controller set, unless this one has set it anew already."""
        if action.timer not in self._timers:
            self._set_timer(action)

    def _set_timer(self, action: order.SetTimer) -> None:
        if (old := self._timers.pop(action.timer, None)) is not None:
            old.cancel()
        wall_s = max(0.0, self.clock.wall_s(action.at_s - self.now_s()))

        def fire() -> None:
            self._timers.pop(action.timer, None)
            self.tell(news.TimerFired(max(self.now_s(), action.at_s), action.timer))

        self._timers[action.timer] = asyncio.get_running_loop().call_later(wall_s, fire)

    # ------------------------------------------------------------------ news of the market and of agents

    def hear_market(
        self, event: news.NodeNoticed | news.NodeLost | news.PriceChanged | news.AvailabilityChanged
    ) -> None:
        """The provider tells."""
        wall_s = time.monotonic()
        if isinstance(event, news.NodeNoticed):
            self.router.node_noticed(event.node_id, wall_s)
            self.doomed_s[event.node_id] = event.lost_s
            in_s = self.clock.wall_s(max(0.0, event.lost_s - self.now_s()))
            self.engine.send(event.node_id, wire.Warn(in_s=in_s))
            late_s = max(in_s / 2, in_s - self.router.needs_s(event.node_id))  # the plan comes first, if it can
            asyncio.get_running_loop().call_later(late_s, self.router.evacuate, event.node_id)
        elif isinstance(event, news.NodeLost):
            self.router.node_lost(event.node_id, wall_s, event.why)
        self.queue(event)
        self.soon()

    def _trains(self, job_id: str) -> bool:
        if self.replaying:  # the workers' own words are not in the log
            return self.kernel.jobs[job_id].phase is Phase.RUNNING
        record = self.records.get(job_id)
        return record is not None and record.group.training and record.outcome != "cancelled"

    def _working(self, job_id: str) -> int | None:
        record = self.records.get(job_id)
        return None if record is None or self.replaying else record.group.working

    def _tells(self, job_id: str) -> bool:
        record = self.records.get(job_id)
        return record is None or record.spec.sdk

    def _doubts(self, job_id: str) -> bool:
        record = self.records.get(job_id)
        return record is not None and bool(record.apart)

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
                    self._save_all_facts()
                    self.memory.mark()
            except sqlite3.Error as error:
                self._give_up(error)
                return
            except Exception:  # one job's trouble is not everybody's
                log.exception("a tick failed")

    def _tick(self, wall_s: float) -> None:
        self.carry_on()  # what is heard already comes first
        for record in list(self.live.values()):
            if record.id not in self.kernel.jobs and not record.group.workers:
                del self.live[record.id]
                self._forget_secrets(record)
                continue
            trained = record.group.training
            record.group.tick(wall_s)
            self.router.heal(record)
            if record.group.training != trained:
                self.bill.settle_job(record.id, self.now_s(), trained=trained)
            self.router.watch_purse(record)
            self.router.attempts.tick(record, wall_s)
            if record.paused == "cancel":
                self.cancel(record)  # if it has left by now
            elif why := record.preempted_too_often or record.blamed:
                self.give_up(record, why)
            self.router.blame.tick(record, wall_s)
            self.router.touch(record)
        self._end_what_must_be_gone()
        self.carry_on()

    def _forget_secrets(self, record: JobRecord) -> None:
        """Nobody will need them again, if it has ended for good."""
        if (record.outcome in FOR_GOOD or record.closed) and self.secret_files.has(record.id):
            forget = asyncio.to_thread(self.secret_files.forget, record.id, record.spec.secrets)
            self.spawn(forget, f"forget the secrets of {record.id}")

    def _end_what_must_be_gone(self) -> None:
        """The purse pays for a node that is given up until `gone_by_us`, and no longer."""
        if self.kernel.supply.budget.purse is None or not self.kernel.supply.giving_up:
            return
        for node in list(self.kernel.cluster.nodes.values()):
            ahead_s = min(LAST_S * self.clock.speedup, node.offer.wind_down_s / 4)
            latest_us = (self.now_s() + ahead_s) * 1e6
            if node.gone_by_us is not None and node.gone_by_us < latest_us and node.phase is not NodePhase.RELEASING:
                self.note(
                    HistoryRow(kind="Budget", node_id=node.id, text="is ended now: nothing is left to pay for it")
                )
                self.spawn(self.release_lost(node.id), f"end {node.id}")

    def _save_all_facts(self) -> None:
        with self.store.together():
            for record in self.live.values():
                self.save_facts(record)

    def save_facts(self, record: JobRecord) -> None:
        """What the log does not tell of a job, if it has changed."""
        record.grains = self.bill.jobs[record.id].told()
        facts = json.dumps(record.facts())
        if facts != record.saved:
            self.store.change_job(record.id, facts=facts)
            record.saved = facts

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
                self._give_up(error)
