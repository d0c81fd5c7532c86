"""The controller: drives the kernel in real time, with real nodes and real processes.

    news of the market, of agents and of users -> kernel -> orders -> provider and engine -> news

Everything happens on one event loop; only the policy thinks in a thread of its own. What happens is heard and written
down by the pump (pump.py) and only then acted on (orders.py), so that a controller that dies at any point leaves an
intent behind for everything that it may have done. The next one reads snapshot and log, compares it with what really
runs, and goes on (recovery.py). Here the parts are put together; each knows the others by an `Inbox` (inbox.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import Event
from sublet.domain.plan import Policy
from sublet.errors import NotNow
from sublet.kernel.journal import header_line
from sublet.kernel.kernel import Kernel
from sublet.machine.files import FILES, Files
from sublet.machine.rng import RNG, Rng
from sublet.runtime.agent.disk import DISK, Disk
from sublet.runtime.clock import Clock
from sublet.runtime.controller.addresses import Addresses
from sublet.runtime.controller.alarms import AlarmKind, Alarms
from sublet.runtime.controller.away import latest_end_s
from sublet.runtime.controller.besides import said_at_the_end
from sublet.runtime.controller.bucket_copies import BucketCopies, Copying, copy_in_process
from sublet.runtime.controller.carrier import Carrier
from sublet.runtime.controller.chronicle import Chronicle
from sublet.runtime.controller.claims import Claims
from sublet.runtime.controller.compaction import Compaction
from sublet.runtime.controller.decisions import Decisions
from sublet.runtime.controller.factory import RecordFactory
from sublet.runtime.controller.feasibility import Feasibility
from sublet.runtime.controller.gauges import Gauges
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.leases import Leases
from sublet.runtime.controller.lifecycle import Lifecycle
from sublet.runtime.controller.logs import JobLogs
from sublet.runtime.controller.orders import Orders
from sublet.runtime.controller.paces import PACES, Paces
from sublet.runtime.controller.planner import LIMIT_S, Planner, begin_thread
from sublet.runtime.controller.preparing import Preparing
from sublet.runtime.controller.pulling import Pulling
from sublet.runtime.controller.pump import Pump
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.recovery import Recovery
from sublet.runtime.controller.router import Router
from sublet.runtime.controller.shelving import Shelving
from sublet.runtime.controller.snapshots import Memory
from sublet.runtime.controller.states import Hold
from sublet.runtime.controller.stored_jobs import StoredJobs
from sublet.runtime.controller.table import JobTable
from sublet.runtime.controller.throttling import Throttling
from sublet.runtime.controller.timekeeping import last_sign_s, mark_text, passed_s
from sublet.runtime.controller.timers import Timers
from sublet.runtime.controller.waits import Waits
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.group.rounds import era_after
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.providers.paced import PacedProvider
from sublet.runtime.providers.pacing import Rates
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.shelf import Shelf
from sublet.runtime.store import STORE_FAILURES, MetaKey, Store

__all__ = ["Controller"]

log = logging.getLogger("sublet.controller")


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
        rates: Rates | None = None,
        decide_limit_s: float = LIMIT_S,
        settings: str = "",  # what it was started with, for whoever has the log alone
        rng: Rng = RNG,
        disk: Disk = DISK,
        files: Files = FILES,
        paces: Paces = PACES,
        aside: Callable[[Callable[[], None]], None] = begin_thread,
        elsewhere: bool = False,  # its nodes may not see this machine's disk
        copy: Copying = copy_in_process,  # checkpoints between this machine's disk and buckets
    ) -> None:
        self.store, self.engine, self.clock = store, engine, clock
        self.limits, self.budget, self._paces = limits or {}, budget, paces
        self.stopping, self._settings = False, settings
        self._life = int(store.get(MetaKey.LIFE) or 0)  # controllers before this one
        self._era = era_after(int(store.get(MetaKey.ERA) or 0), clock.wall.unix(), passed_s(store, clock.wall))
        self._server_id, self._holder = store.get(MetaKey.SERVER_ID) or rng.token(8), rng.token(8)
        offers = tuple(provider.offers)
        table = self.table = JobTable()
        kernel = Kernel(offers, limits=self.limits)  # the budget is its first event
        self.bill = table.bill(kernel)
        chronicle = Chronicle(store, table.has_session, table.kept, table.grid, wall=clock.wall)
        inbox = self.inbox = Pump(kernel, store=store, clock=clock, bill=self.bill, chronicle=chronicle)
        self.gauges = Gauges(wall=clock.wall)
        self.alarms = Alarms(self.gauges, inbox.note, wall=clock.wall)
        ear = Throttling(self.gauges, self.alarms)
        self.provider = PacedProvider(provider, rates, ear=ear, insist=store.insist, wall=clock.wall, rng=rng)
        self.secret_files, self.logs = SecretFiles(state_dir), JobLogs(state_dir)
        self.carrier = Carrier(state_dir, files=files, rng=rng, engine=engine, logs=self.logs, elsewhere=elsewhere)
        addresses = Addresses(self.alarms)
        self.factory = RecordFactory(
            inbox,
            table=table,
            host_of=addresses.host_of,
            logs=self.logs,
            offers=offers,
            clock=clock,
            state_dir=state_dir,
            server_id=self._server_id,
            era=self._era,
            disk=disk,
            carries=self.carrier.carries,
        )
        self.jobs = Lifecycle(
            inbox,
            table=table,
            bill=self.bill,
            store=store,
            secret_files=self.secret_files,
            factory=self.factory,
            clock=clock,
        )
        self.router = Router(
            inbox,
            table=table,
            jobs=self.jobs,
            bill=self.bill,
            engine=engine,
            logs=self.logs,
            carrier=self.carrier,
            gauges=self.gauges,
            alarms=self.alarms,
            addresses=addresses,
            clock=clock,
            first_life=not self._life,
            paces=paces,
        )
        self.carrier.pulling = Pulling(
            state_dir / "checkpoints",
            files=files,
            engine=engine,
            wall=clock.wall,
            terms=table.checkpoint_terms,
            saved=self.router.note_carried,
            alarm=lambda job_id, text: self.alarms.sound(AlarmKind.CHECKPOINT, text, job_id=job_id, reason=text),
            insist=store.insist,
        )
        self.claims = self.carrier.claims = Claims(table, hear=self.router.hear_agent, note=inbox.note, aside=aside)
        self.leases = Leases(
            inbox,
            provider=self.provider,
            engine=engine,
            tenants=self.router,
            store=store,
            server_id=self._server_id,
            gauges=self.gauges,
            alarms=self.alarms,
            clock=clock,
            rng=rng,
            paces=paces,
        )
        self.planner = Planner(policy, self.alarms.sound, limit_s=decide_limit_s, wall=clock.wall, aside=aside)
        self.decisions = Decisions(inbox, planner=self.planner, gauges=self.gauges, alarms=self.alarms, wall=clock.wall)
        self.feasibility = Feasibility(inbox, offers=offers, factory=self.factory, clock=clock)
        self.waits = Waits(inbox, table=table, feasibility=self.feasibility, decisions=self.decisions)
        self.copies = BucketCopies(
            table,
            place=self.factory.place,
            every_s=lambda record: self.factory.intervals(record).bucket_s,
            saved=lambda record, told: record.tiers.saved(record.id, told, self.bill, clock.speedup),
            freed=self._free,
            alarm=lambda job_id, text: inbox.note(HistoryRow(kind="Alarm", job_id=job_id, text=text)),
            aside=aside,
            copy=copy,
        )
        self._timers = Timers(inbox, clock)
        self._orders = Orders(
            inbox,
            router=self.router,
            preparing=Preparing(self.router, table),
            leases=self.leases,
            timers=self._timers,
            decisions=self.decisions,
            waits=self.waits,
            wall=clock.wall,
        )
        self.compaction = Compaction(inbox, store=store, alarms=self.alarms, files=files, paces=paces)
        self._stored = StoredJobs(inbox, store=store, secret_files=self.secret_files, factory=self.factory)
        self.shelving = Shelving(
            inbox, table=table, bill=self.bill, shelf=Shelf(store), stored=self._stored, paces=paces
        )
        self.memory = Memory(
            inbox,
            adopt=inbox.adopt,
            table=table,
            jobs=self.jobs,
            bill=self.bill,
            store=store,
            clock=clock,
            compaction=self.compaction,
            shelving=self.shelving,
            paces=paces,
        )
        inbox.connect(journal=self.memory, outlet=self._orders, alarms=self.alarms)

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Recover what an earlier controller left, or begin."""
        try:
            last_s = last_sign_s(self.store)
            self.router.blame.keep_time(self.clock.wall.monotonic(), self.engine.lease_s)
            self._claim_store(last_s)
            await self._recover(last_s)
        except STORE_FAILURES as error:
            raise self.inbox.fail(error) from error
        self.inbox.spawn(self._ticking(), "ticking")
        self.inbox.spawn(self.leases.sweeping(), "sweeping")
        self.compaction.look()

    def _claim_store(self, last_s: float) -> None:
        facts: dict[str, str] = {MetaKey.SERVER_ID: self._server_id, MetaKey.ERA: str(self._era)}
        if self.store.get(MetaKey.HEADER) is None:
            facts[MetaKey.HEADER] = header_line(self.provider.offers, self.limits, UNLIMITED)
        elif self.clock.certain and self.clock.now_s() <= latest_end_s(last_s, self.engine.lease_s, self.clock.speedup):
            # Agents stay for whoever is there, also for one that has no time to say anything more. Those that have
            # ended do not: were this a sign of life, a start that fails would have them paid for until now.
            facts[MetaKey.MARK] = mark_text(self.clock)
        if self._settings:
            facts[MetaKey.SETTINGS] = self._settings
        self.store.claim(self._holder, after=self._life, facts=facts)

    async def _recover(self, last_s: float) -> None:
        recovery = Recovery(
            pump=self.inbox,
            orders=self._orders,
            table=self.table,
            stored=self._stored,
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
            last_s=last_s,
            agents_come_back_s=self._paces.agents_come_back_s,
        )
        await recovery.recover()

    async def wait(self) -> None:
        """Until `stop` or `abandon` has done its work; raises what made it impossible to go on."""
        await self.inbox.ended.wait()
        if self.inbox.failure is not None:
            raise self.inbox.failure

    async def stop(self, *, end_jobs: bool = False, limit_s: float = 60.0) -> None:
        """Save and stop every job, give everything back, and end."""
        if self.stopping:
            await self.inbox.ended.wait()
            return
        self.stopping = True
        self.leases.rent_no_more()
        self.jobs.stop_all(end=end_jobs)
        deadline = self.clock.wall.monotonic() + limit_s
        while self.clock.wall.monotonic() < deadline and any(  # noqa: ASYNC110 - with a deadline, and nothing sets an event
            s.gpus for s in self.kernel.jobs.values()
        ):
            await asyncio.sleep(0.05)
        for record in self.records.values():
            if record.paused is Hold.CANCEL:
                self.jobs.cancel(record, now=True)  # it has left, or has had its time
        await self.leases.release_all()
        for event in said_at_the_end(self.kernel, self.now_s()):
            self.tell(event)
        await self.inbox.end_tasks()
        await self.jobs.forget_all_secrets(failed_too=end_jobs)
        await self.engine.close()
        await self.provider.close()
        self.logs.keeper.look_last()
        self.jobs.save_all_facts()
        self.memory.write()
        self.inbox.ended.set()

    async def abandon(self) -> None:
        """Stop at once and for ever, as a crash would: nothing is saved, released or closed, and nobody is told.

        What was rented and what runs stays for the next controller of this state directory to find.
        """
        self.stopping = True
        self.inbox.ended.set()
        self._timers.cancel_all()
        await self.inbox.end_tasks()

    # ------------------------------------------------------------------ for whoever asks from outside

    @property
    def kernel(self) -> Kernel:
        """To be read."""
        return self.inbox.kernel

    @property
    def records(self) -> dict[str, JobRecord]:
        """Every job that is at hand, by id; those that ended long ago are on the shelf."""
        return self.table.records

    def now_s(self) -> float:
        """Cloud time; never before the kernel's own."""
        return self.inbox.now_s()

    def tell(self, event: Event) -> None:
        """Something happened: the kernel hears of it now, or after what it is busy with."""
        self.inbox.tell(event)

    def note(self, row: HistoryRow) -> None:
        """Something for the history alone."""
        self.inbox.note(row)

    def add(self, job_id: str, spec: JobSpec, key: str = "") -> JobRecord:
        """Take a job; it is on disk when this returns."""
        if self.inbox.ended.is_set():
            raise self.inbox.failure or NotNow(spec.name, "brought to a controller that has ended", "be submitted")
        with self.writing():
            return self.jobs.add(job_id, spec, key)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """For what must be on disk when it is answered: a store that fails ends the controller, and that is said."""
        try:
            yield
        except STORE_FAILURES as error:
            raise self.inbox.fail(error) from error
        if self.inbox.failure is not None:
            raise self.inbox.failure

    def _free(self, record: JobRecord) -> None:
        """Its checkpoints are here."""
        if self.carrier.pulling is not None:
            self.carrier.pulling.forget_job(record.id)
        self.jobs.relearn(record)

    async def _ticking(self) -> None:
        saved = self.clock.wall.monotonic()
        with self.logs.kept():
            while True:
                await asyncio.sleep(self._paces.tick_s)
                wall_s = self.clock.wall.monotonic()
                try:
                    self._tick(wall_s)
                    if wall_s - saved > self._paces.save_s:
                        saved = wall_s
                        self.jobs.save_in_turn()
                        self.memory.mark()
                    self.jobs.save_more_facts()
                except STORE_FAILURES as error:
                    self.inbox.fail(error)
                    return
                except Exception:  # one job's trouble is not everybody's
                    log.exception("a tick failed")

    def _tick(self, wall_s: float) -> None:
        self.router.blame.keep_time(wall_s, self.engine.lease_s)
        self.inbox.carry_on()  # what is heard already comes first
        for record in list(self.table.live.values()):
            if record.id not in self.kernel.jobs and not record.group.workers:
                self.jobs.retire(record)
            else:
                self.router.tick(record, wall_s)
        self.logs.keep_bounds(self.table.live.values())
        self.router.hearing.look(wall_s)
        self.leases.end_unpaid()
        self.copies.tick(wall_s)
        self.claims.tick(wall_s)
        self.inbox.carry_on()
