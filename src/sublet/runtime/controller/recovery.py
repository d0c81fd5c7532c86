"""What a controller does first: read what the last one left, then compare it with what really runs.

    snapshot + log -> kernel as it was -> agents that still train, nodes that still cost -> what was left undone

Agents and their workers outlive the controller by a lease. They come back by themselves, with all that they run; what
the kernel believes and nobody has is lost, what somebody has and the kernel does not know is ended.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import Event
from sublet.domain.plan import Phase
from sublet.domain.timers import CheckPurse
from sublet.errors import BadInput, InvalidValue, NoAnswer, SubletError
from sublet.kernel.cluster import NodePhase
from sublet.runtime.clock import Clock
from sublet.runtime.controller.away import Absence, latest_end_s, old_prices_first
from sublet.runtime.controller.besides import left_behind
from sublet.runtime.controller.forms import told
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.leases import Leases
from sublet.runtime.controller.lifecycle import Lifecycle
from sublet.runtime.controller.orders import Orders
from sublet.runtime.controller.pump import Pump
from sublet.runtime.controller.router import Router
from sublet.runtime.controller.snapshots import Memory
from sublet.runtime.controller.states import Ending
from sublet.runtime.controller.stored_jobs import StoredJobs
from sublet.runtime.controller.strangers import strangers_among
from sublet.runtime.controller.table import JobTable
from sublet.runtime.controller.timers import Timers
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.providers.protocol import Provider
from sublet.runtime.store import MetaKey, Store

__all__ = ["Recovery"]

log = logging.getLogger("sublet.controller")
ANSWERS_WITHIN_S = 30.0  # wall, of the provider at a start: nobody looks at the purse till then
# What is asked for a job, by its owner or after a loss. Its record may have been saved and the kernel not told of it.
_asks = attrgetter("paused", "pools", "gpus", "min_gpus", "max_gpus", "min_on_demand", "weight", "hurry", "deadline_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Of one controller, whose parts it brings to where the log ends; it is done with when the controller lives."""

    pump: Pump
    orders: Orders
    table: JobTable
    stored: StoredJobs
    memory: Memory
    jobs: Lifecycle
    router: Router
    leases: Leases
    timers: Timers
    provider: Provider
    engine: Engine
    store: Store
    clock: Clock
    budget: Budget  # that it was started with
    limits: Mapping[str, Limit]
    last_s: float  # cloud time of the last sign of the controller before this one
    agents_come_back_s: float  # wall

    async def recover(self) -> None:
        """Bring the controller to where the log ends, and the world to where the kernel is."""
        for record in self.stored.read():
            self.table.keep(record)
        absence = Absence(
            self.pump,
            table=self.table,
            leases=self.leases,
            agents=self.router.agents,
            clock=self.clock,
            latest_s=latest_end_s(self.last_s, self.engine.lease_s, self.clock.speedup),
            agents_come_back_s=self.agents_come_back_s,
        )
        read = self.memory.read()
        for record in self.table.records.values():
            self.router.attempts.remember(record)
            failed_ago_s = max(0.0, self.clock.now_s() - record.failed_s) / self.clock.speedup
            record.group.patience.failed_s = self.clock.wall.monotonic() - failed_ago_s
        if self.pump.kernel.seen == 0:
            await self._begin()
        else:
            await self._go_back_to_work(absence, read)
        self.memory.write()

    async def _begin(self) -> None:
        """The first controller of this state directory."""
        self.pump.tell(news.BudgetChanged(self.pump.now_s(), self.budget))
        self.store.put(MetaKey.BUDGET, repr(self.budget))
        await self.engine.open(self.router.hear_agent)
        await self.provider.open(self.leases.hear)

    async def _go_back_to_work(self, absence: Absence, read: int) -> None:
        kernel, other_offers = self.pump.kernel, self._other_offers()
        for node in kernel.cluster.nodes.values():
            if node.phase is not NodePhase.RELEASING:
                self.engine.expect(node.id, self.leases.token(node.id))
        for job_id, state in kernel.jobs.items():
            if state.gpus:
                record, trains = self.table.records[job_id], state.phase is Phase.RUNNING
                placement, form = told(kernel, record, state.runs_in, kernel.tenancy.placement.get(job_id, ()))
                now_s = self.clock.wall.monotonic()
                record.group.adopt(state.generation, placement, state.batch, trains=trains, wall_s=now_s, form=form)
        self.orders.holding = True  # orders for workers are given when it is known who is still there
        text = f"the controller is back; {read} of {kernel.seen} events replayed"
        self.pump.note(HistoryRow(kind="Recovered", text=text))
        held = list(kernel.cluster.nodes)
        await self._meet_the_world(absence, other_offers)
        self._repeat_orders(held)
        await self._release_silent_nodes(absence)
        self.orders.holding = False
        self._finish_moves()
        self._go_on()

    async def _meet_the_world(self, absence: Absence, first: list[Event]) -> None:
        """Agents and the market speak from now on; what ended long ago is heard first, then what is on offer now."""
        self.pump.stop_listening()
        await self.engine.open(self.router.hear_agent)
        await self._open_provider()
        strangers = await self._strangers()  # before all that may lead to a rent: their numbers are taken
        before = [*strangers, *left_behind(self.pump.kernel, self.clock, self.last_s)]
        if absence.was_too_long:
            await absence.settle(before, first)
        else:
            supply = self.pump.kernel.supply
            self.pump.hear_first(lambda told: [*before, *old_prices_first(told, first, supply.offers)])

    async def _open_provider(self) -> None:
        """One that does not answer now may in a moment, and what is rented there must not be left alone for that."""
        end_s, wait_s = self.clock.wall.monotonic() + ANSWERS_WITHIN_S, 0.2
        while True:
            try:
                await self.provider.open(self.leases.hear)
                return
            except sqlite3.Error:
                raise
            except Exception as error:  # a cloud can fail in any way
                needs_somebody = isinstance(error, SubletError) and not isinstance(error, NoAnswer)
                if needs_somebody or self.clock.wall.monotonic() > end_s:
                    raise
                log.warning("the provider cannot be opened (%s), it is asked again in %g s", error, wait_s)
            await self.provider.close()
            await asyncio.sleep(wait_s)
            if self.clock.certain:  # agents that have come back meanwhile stay for a lease from now
                self.memory.mark()
            wait_s *= 2

    async def _strangers(self) -> list[Event]:
        """What was rented after this log ends, by a controller whose store was put back to an earlier time."""
        try:
            found = strangers_among(await self.provider.list(), self.pump.kernel)
        except Exception as error:  # noqa: BLE001 - as in _open_provider; the sweep looks again
            log.warning("the provider cannot be listed (%s): what nobody knows of is found later", error)
            return []
        return [] if found is None else self.leases.end_strangers(found, self.pump.kernel.now_s)

    def _other_offers(self) -> list[Event]:
        """What can be rented now, and within which limits, where that is not what the kernel knows."""
        supply, offers = self.pump.kernel.supply, tuple(self.provider.offers)
        known = tuple(offer for offer_id, offer in supply.offers.items() if offer_id not in supply.offering.withdrawn)
        limits = {offer.id: self.limits.get(offer.id, Limit()) for offer in offers}
        if (
            known == offers
            and {o: limit for o, limit in supply.limits.items() if o not in supply.offering.withdrawn} == limits
        ):
            return []
        try:
            supply.offering.listing(offers, self.limits, {})
        except InvalidValue as error:
            hint = "start it as before and 'sublet down', then change it; or begin anew with 'sublet up --fresh'"
            why = f"cannot go on with other offers: {str(error).partition(chr(10))[0]}"
            raise BadInput(self.store.path, why, hint=hint) from error
        return [news.OffersChanged(self.pump.now_s(), offers, dict(self.limits))]

    def _repeat_orders(self, held: list[str]) -> None:
        """To rent and to give back, of the last controller; those for other nodes were given a moment ago."""
        for node in [node for node_id, node in self.pump.kernel.cluster.nodes.items() if node_id in held]:
            if node.phase is NodePhase.REQUESTED:  # the same token: at most one node comes of it
                again = self.leases.rent(order.RentNode(node.id, node.offer.id), again=True)
                self.pump.spawn(again, f"rent {node.id}")
            elif node.phase is NodePhase.RELEASING:
                self.orders.carry_out(order.ReleaseNode(node.id))

    async def _release_silent_nodes(self, absence: Absence) -> None:
        """Give agents time to come; a node whose agent stays away is given back, and counts as lost."""
        await absence.wait_for_agents()
        for node_id in absence.silent():
            text = "its agent did not come back: it is given back"
            self.pump.note(HistoryRow(kind="Alarm", node_id=node_id, text=text))
            await self.leases.release_lost(node_id)

    def _finish_moves(self) -> None:
        """Orders that the last controller gave and whose answer it did not hear: give them again."""
        wall_s = self.clock.wall.monotonic()
        for record in self.table.records.values():
            group, known = record.group, record.id in self.pump.kernel.jobs
            if (known and record.outcome) or (not known and group.workers):
                # It has ended: its workers were not told, or the kernel was not, and nobody is to begin there again.
                group.stop(group.generation + 1, resumable=False, wall_s=wall_s)
            group.all_agents_came(wall_s)
            self.router.heal(record, held=True)
            self.router.touch(record)
        self.pump.carry_on()

    def _go_on(self) -> None:
        self._submit_again()
        for action in list(self.memory.timers.values()):
            self.timers.resume(action)
        if self.store.get(MetaKey.BUDGET) != repr(self.budget):  # it was started with another one than last time
            self.store.put(MetaKey.BUDGET, repr(self.budget))
            if self.budget != self.pump.kernel.supply.budget:  # which may have been changed since
                self.pump.tell(news.BudgetChanged(self.pump.now_s(), self.budget))
        in_force = self.pump.kernel.supply.budget
        if in_force.besides != self.budget.besides:  # it has moved to a machine that is paid for, or from one
            in_force = replace(in_force, besides=self.budget.besides)
            self.pump.tell(news.BudgetChanged(self.pump.now_s(), in_force))
        for record in self.table.records.values():  # what was stopped with the controller may go on
            known = self.pump.kernel.jobs.get(record.id)
            if known is not None and _asks(known.job) != _asks(self.jobs.describe(record)):
                self.jobs.relearn(record)
        if self.pump.kernel.planning:
            self.orders.carry_out(order.MakePlan())
        else:
            self.pump.tell(news.TimerFired(self.pump.now_s(), CheckPurse()))  # look at the purse after the time away

    def _submit_again(self) -> None:
        """A job that was taken, and one that had ended, of which the kernel had not heard."""
        for record in list(self.table.records.values()):
            if record.id not in self.table.submitted:
                self.jobs.submit(record)
            elif self.jobs.funding.lacks(record):
                self.jobs.funding.tell(record)
            elif record.id in self.pump.kernel.jobs and record.outcome is Ending.FINISHED:
                self.pump.tell(news.JobFinished(self.pump.now_s(), record.id))
            elif record.id in self.pump.kernel.jobs and record.outcome is Ending.FAILED:
                self.pump.tell(news.JobFailed(self.pump.now_s(), record.id, record.error))
