"""The controller: drives the kernel in real time, with real nodes and real processes.

    news of the market, of agents and of users -> kernel -> orders -> provider and engine -> news

Everything happens on one event loop; only the policy thinks in a thread of its own. What happens is heard and written
down by the pump (pump.py) and only then acted on (orders.py), so that a controller that dies at any point leaves an
intent behind for everything that it may have done. The next one reads snapshot and log, compares it with what really
runs, and goes on (recovery.py). Here the parts are put together; each has an `Inbox` (inbox.py) for its news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sublet.domain.events import Event
from sublet.domain.plan import Policy
from sublet.errors import NotNow
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.core.decisions import Decisions, DeferredPlans, Planner
from sublet.runtime.controller.core.pump import Orders, Pump
from sublet.runtime.controller.core.recovery import Recovery
from sublet.runtime.controller.files import BucketCopies, Claims, FileSync, JobLogs, PulledJobs, Pulling
from sublet.runtime.controller.host import HostServices, Options
from sublet.runtime.controller.jobs import Feasibility, Groups, Lifecycle, RecordFactory
from sublet.runtime.controller.memory import (
    Compaction,
    Context,
    Identity,
    JobRecord,
    JobTable,
    Memory,
    NodeTable,
    Shelving,
    StoredJobs,
)
from sublet.runtime.controller.money import Bill, last_sign_s, said_at_the_end
from sublet.runtime.controller.nodes import Leases, RentedNodes, paced
from sublet.runtime.controller.watch import AlarmKind, Alarms, Chronicle, Gauges, HistoryRow
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.secret_files import SecretFiles
from sublet.runtime.store import STORE_FAILURES, Store

log = logging.getLogger("sublet.controller")


class Controller:
    """See the module. Construct it with everything it needs, `await start()`, and tell it what users want."""

    def __init__(
        self, store: Store, provider: Provider, engine: Engine, policy: Policy, *, host: HostServices, options: Options
    ) -> None:
        self.store, self.engine, self.clock, self.host, self.options = store, engine, host.clock, host, options
        self.stopping = False
        self.identity, self.holder = Identity.of(store, host), host.rng.token(8)
        kernel = Kernel(tuple(provider.offers), limits=options.limits)  # the budget is its first event
        table, nodes = JobTable(), NodeTable()
        bill = table.bill(kernel)
        chronicle = Chronicle(store, table.has_session, table.kept, table.grid, wall=host.wall)
        inbox = self.inbox = Pump(kernel, store=store, clock=host.clock, bill=bill, chronicle=chronicle)
        alarms = Alarms(Gauges(wall=host.wall), inbox.note, wall=host.wall)
        context = self.context = Context(inbox=inbox, table=table, nodes=nodes, bill=bill, alarms=alarms, host=host)
        self._build_jobs(context, provider)
        self._build_nodes(context, provider)
        self._build_policy(context, policy, provider)
        self._build_memory(context)
        inbox.connect(journal=self.memory, departures=self.nodes.notices, outlet=self._orders, alarms=alarms)

    def _build_jobs(self, context: Context, provider: Provider) -> None:
        state_dir, store = context.host.state_dir, self.store
        self.secret_files, self.logs = SecretFiles(state_dir), JobLogs(state_dir)
        self.sync = FileSync(
            state_dir,
            files=context.host.files,
            rng=context.host.rng,
            engine=self.engine,
            logs=self.logs,
            elsewhere=self.options.elsewhere,
        )
        self.factory = RecordFactory(
            context,
            self.identity,
            offers=provider.offers,
            logs=self.logs,
            host_of=context.nodes.host_of,
            carries=self.sync.carries,
        )
        self.jobs = Lifecycle(context, self.factory, store, self.secret_files)
        self.groups = Groups(context, self.jobs, self.sync, self.engine)
        self.copies = BucketCopies(
            context,
            place=self.factory.place,
            every_s=lambda record: self.factory.intervals(record).bucket_s,
            freed=self._free,
        )

    def _build_nodes(self, context: Context, provider: Provider) -> None:
        host, store, sound = context.host, self.store, context.alarms.sound
        self.provider = paced(provider, self.options.rates, context, store.insist)
        self.nodes = RentedNodes(
            context,
            self.groups,
            engine=self.engine,
            provider=self.provider,
            store=store,
            identity=self.identity,
        )
        self.sync.pulling = Pulling(
            host.state_dir / "checkpoints",
            host.files,
            self.engine,
            host.wall,
            PulledJobs(
                terms=context.table.checkpoint_terms,
                saved=self.groups.note_carried,
                alarm=lambda job_id, text: sound(AlarmKind.CHECKPOINT, text, job_id=job_id, reason=text),
                insist=store.insist,
            ),
        )
        self.claims = self.sync.claims = Claims(
            context.table, hear=self.nodes.agents.receive, note=self.inbox.note, aside=host.aside
        )

    def _build_policy(self, context: Context, policy: Policy, provider: Provider) -> None:
        inbox, host, alarms = context.inbox, context.host, context.alarms
        limit_s = self.options.decide_limit_s
        self.planner = Planner(policy, alarms.sound, limit_s=limit_s, wall=host.wall, aside=host.aside)
        self.decisions = Decisions(inbox, self.planner, alarms, host.wall)
        self.feasibility = Feasibility(inbox, offers=provider.offers, factory=self.factory, clock=host.clock)
        self.deferred = DeferredPlans(
            inbox, table=context.table, feasibility=self.feasibility, decisions=self.decisions
        )
        self._orders = Orders(context, self.groups, self.nodes.leases, self.decisions, self.deferred)

    def _build_memory(self, context: Context) -> None:
        host, store = context.host, self.store
        self.compaction = Compaction(context.inbox, store, context.alarms, host.files, host.paces)
        stored = StoredJobs(context.inbox, store, self.secret_files, self.factory)
        self.archive = Shelving(context, store, stored)
        self.memory = Memory(
            context,
            store,
            adopt=self.inbox.adopt,
            save_facts=self.jobs.save_facts,
            compaction=self.compaction,
            shelving=self.archive,
        )

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Recover what an earlier controller left, or begin."""
        try:
            last_s = last_sign_s(self.store)
            self.groups.blame.keep_time(self.clock.wall.monotonic(), self.engine.lease_s)
            recovery = self.recovery()
            recovery.claim(self.holder, self.identity, self.options, last_s)
            await recovery.recover(self.options, last_s)
        except STORE_FAILURES as error:
            raise self.inbox.fail(error) from error
        self.inbox.spawn(self._ticking(), "ticking")
        self.inbox.spawn(self.nodes.reaper.run(), "sweeping")
        self.compaction.look()

    def recovery(self) -> Recovery:
        """The part that claims the store and reads what an earlier controller left."""
        return Recovery(
            self.context, self.inbox, memory=self.memory, jobs=self.jobs, nodes=self.nodes, orders=self._orders
        )

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
        self.nodes.leases.rent_no_more()
        self.jobs.stop_all(end=end_jobs)
        deadline = self.clock.wall.monotonic() + limit_s
        while self.clock.wall.monotonic() < deadline and any(  # noqa: ASYNC110 - with a deadline, and nothing sets an event
            s.gpus for s in self.kernel.jobs.values()
        ):
            await asyncio.sleep(0.05)
        self.jobs.cancel_leaving()
        await self.nodes.leases.release_all()
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
        """Stop at once and for ever, as a crash would: nothing is saved, released, closed or told.

        What was rented and what runs stays for the next controller of this state directory to find.
        """
        self.stopping = True
        self.inbox.ended.set()
        self._orders.timers.cancel_all()
        await self.inbox.end_tasks()

    # ------------------------------------------------------------------ for users of a controller

    @property
    def kernel(self) -> Kernel:
        """To be read."""
        return self.inbox.kernel

    @property
    def records(self) -> dict[str, JobRecord]:
        """Every job that is at hand, by id; those that ended long ago are on the shelf."""
        return self.table.records

    @property
    def table(self) -> JobTable:
        """The jobs."""
        return self.context.table

    @property
    def bill(self) -> Bill:
        """The bill of all jobs."""
        return self.context.bill

    @property
    def alarms(self) -> Alarms:
        """Told in the history; with the gauges."""
        return self.context.alarms

    @property
    def gauges(self) -> Gauges:
        """Counters of this controller's own doing."""
        return self.context.alarms.gauges

    @property
    def leases(self) -> Leases:
        """Leases of nodes."""
        return self.nodes.leases

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
        if self.sync.pulling is not None:
            self.sync.pulling.forget_job(record.id)
        self.jobs.relearn(record)

    async def _ticking(self) -> None:
        saved = self.clock.wall.monotonic()
        with self.logs.kept():
            while True:
                await asyncio.sleep(self.host.paces.tick_s)
                wall_s = self.clock.wall.monotonic()
                try:
                    self._tick(wall_s)
                    if wall_s - saved > self.host.paces.save_s:
                        saved = wall_s
                        self.jobs.save_in_turn()
                        self.memory.mark()
                    self.jobs.save_more_facts()
                except STORE_FAILURES as error:
                    self.inbox.fail(error)
                    return
                except Exception:  # one job's trouble is not that of all
                    log.exception("a tick failed")

    def _tick(self, wall_s: float) -> None:
        self.groups.blame.keep_time(wall_s, self.engine.lease_s)
        self.inbox.carry_on()  # what is heard already comes first
        for record in list(self.table.live.values()):
            if record.id not in self.kernel.jobs and not record.group.workers:
                self.jobs.retire(record)
            else:
                self.groups.tick(record, wall_s)
        self.logs.keep_bounds(self.table.live.values())
        self.nodes.agents.heartbeats.leave_silent(wall_s)
        self.nodes.leases.end_unpaid()
        self.copies.tick(wall_s)
        self.claims.tick(wall_s)
        self.inbox.carry_on()
