"""The start of a controller: read what the last one left, then compare it with what really runs.

    snapshot + log -> kernel as it was -> agents that still train, nodes that still cost -> what was left undone

Agents and their workers outlive the controller by a lease. They come back by themselves, with all that they run; what
the kernel believes and no machine has is lost, what a machine has and the kernel does not know is ended.

After longer than a lease, what was rented then has ended, and is charged no further than it can have lived. An agent
that hears nothing of its controller for a lease ends itself and its node. So nodes whose agents do not come back have
been gone since then at the latest, whatever the clocks say; where the provider has a record of its own, that is what
counts. The kernel hears of these ends at their own time and before anything else: had it first heard of today, all the
time in between would look like rent. So with prices: each counts from when it began.

After a boot of this machine the time away was read from a wall clock. Then an agent that does come back proves that no
lease has passed, and that the clock is wrong. One that comes for the first time proves nothing, nor does one that was
there in time and whose provider took long to answer. So does a provider's record of an end that comes after all that
was leased has ended: by the same clock it has everything too late, and by as much. A time that was measured is believed
believed longer than their lease where they slept themselves, or where controllers came and went without leaving a mark.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import Event
from sublet.domain.plan import Phase
from sublet.domain.timers import CheckPurse
from sublet.errors import BadInput, InvalidValue, NoAnswer, SubletError
from sublet.kernel.cluster import NodePhase
from sublet.kernel.journal import header_line
from sublet.runtime.controller.core.pump import Orders, Pump
from sublet.runtime.controller.host import Options
from sublet.runtime.controller.inbox import Ending
from sublet.runtime.controller.jobs import Lifecycle, told
from sublet.runtime.controller.memory import Context, Identity, Memory
from sublet.runtime.controller.money import MARK_EVERY_S, left_behind, mark_text, nothing_wanted
from sublet.runtime.controller.nodes import Leases, RentedNodes
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.store import MetaKey

CONFIRMED_WITHIN_S = 30.0  # wall, for the provider to say that they are gone; what takes longer is charged until then
LEASED = (NodePhase.READY, NodePhase.NOTICED)  # its agent has heard of the lease; one that boots has time of its own

End = news.NodeLost | news.NodeReleased | news.RentRefused


class Absence:
    """The nodes that an earlier controller held; they have ended themselves at `latest_s` at the latest."""

    def __init__(self, context: Context, pump: Pump, leases: Leases, latest_s: float) -> None:
        self._pump, self._table, self._leases, self._agents = pump, context.table, leases, context.nodes.agents
        self._clock, self._latest_s = context.host.clock, latest_s
        self._agents_come_back_s = context.host.paces.agents_come_back_s
        self._came_s = self._clock.now_s()  # agents may speak from now on

    @property
    def was_too_long(self) -> bool:
        """Something was rented, and cannot have lived until now."""
        return bool(self._pump.kernel.cluster.nodes) and self._clock.now_s() > self._latest_s

    async def settle(self, before: list[Event], first: list[Event]) -> None:
        """Find out what is left; the kernel hears nothing till then: then `before`, of every end, and `first`."""
        await self.wait_for_agents()
        kernel = self._pump.kernel
        nodes = kernel.cluster.nodes
        survivors = any(node_id in self._agents for node_id in nodes)
        leased = any(node.id in self._agents for node in nodes.values() if node.phase in LEASED)
        if leased and not self._clock.certain and self._came_s > self._latest_s:
            self._set_back(self._came_s - self._latest_s, "agents are back that end with their lease")
        gone = [node_id for node_id in nodes if node_id not in self._agents]
        leased_gone = [node_id for node_id in gone if nodes[node_id].phase in LEASED]
        if gone:
            ending = [asyncio.ensure_future(self._leases.release_lost(node_id)) for node_id in gone]
            await asyncio.wait(ending, timeout=CONFIRMED_WITHIN_S)
        ahead_s = 0.0 if self._clock.certain else self._ahead_s(leased_gone)
        if ahead_s > 0.0:
            self._set_back(ahead_s, "nodes that end with their lease ended later, on record")
        now_s = self._pump.now_s()
        jobs = {job_id for node_id in gone for job_id in nodes[node_id].jobs}
        # No node that ended meanwhile is replaced by itself: a plan will say what is wanted today.
        before = [*([] if survivors else [nothing_wanted(kernel, kernel.now_s)]), *before]
        offers = kernel.supply.offers
        self._pump.hear_first(lambda told: [*before, *_ends_first(told, first, now_s, self._latest_s, offers)])
        for job_id in jobs & kernel.jobs.keys():  # no worker is left that trains it
            state, placement = kernel.jobs[job_id], kernel.tenancy.placement.get(job_id, ())
            if not any(node_id in self._agents for node_id, _ in placement):
                group = self._table.records[job_id].group
                group.adopt(state.generation, placement, state.batch, trains=False, wall_s=self._clock.wall.monotonic())

    def _ahead_s(self, leased: Container[str]) -> float:
        """By how much the clock is ahead, as records of these nodes show: at least so that all ended with their lease.

        At most so that none began before its order: an agent that slept may have outlived its lease.
        """
        lived = [
            (event.node_id, event.billed_from_s, event.billed_to_s)
            for event in self._pump.waiting
            if isinstance(event, news.NodeLost | news.NodeReleased) and event.node_id in leased
        ]
        late_s = [to_s - self._latest_s for _, _, to_s in lived if to_s is not None]
        ordered_s = self._pump.kernel.ledger.ordered_s
        most_s = [from_s - (ordered_s(node_id) or 0.0) for node_id, from_s, _ in lived if from_s is not None]
        return min(max(late_s, default=0.0), min(most_s, default=0.0))

    def _set_back(self, by_s: float, why: str) -> None:
        """Time of our own did pass; events that were told meanwhile are as much too late as the clock was."""
        self._clock.set_back(self._clock.now_s() - by_s)
        self._pump.set_back(by_s)
        self._pump.note(HistoryRow(kind="Alarm", text=f"{why}: the clock was set forward, and is not believed"))

    async def wait_for_agents(self) -> None:
        """Until all have come, or long enough."""
        deadline = self._clock.wall.monotonic() + self._agents_come_back_s
        while self._clock.wall.monotonic() < deadline and self.silent():  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(0.05)

    def silent(self) -> list[str]:
        """Nodes that are in use as far as the kernel knows, and whose agents have not come."""
        nodes = self._pump.kernel.cluster.nodes
        return [node.id for node in nodes.values() if node.phase in LEASED and node.id not in self._agents]


def latest_end_s(last_sign_s: float, lease_s: float, speedup: float) -> float:
    """The cloud time at which nodes of a controller that was last seen then have ended themselves."""
    return last_sign_s + (MARK_EVERY_S + lease_s) * speedup


def old_prices_first(told: Iterable[Event], first: Iterable[Event], known: Container[str]) -> list[Event]:
    """Events until now: prices, each at the time from which it counts, then `first`, then all the rest."""
    told = list(told)
    prices = [event for event in told if isinstance(event, news.PriceChanged) and event.offer_id in known]
    rest = [event for event in told if event not in prices]
    return [*sorted(prices, key=lambda event: event.at_s), *first, *rest]


def _ends_first(
    told: list[Event], first: list[Event], now_s: float, latest_s: float, known: Container[str]
) -> list[Event]:
    """Events until now, prices and the ends of nodes at the time when they were, in front of all the rest."""
    ends: dict[str, End] = {}
    prices: list[Event] = []
    rest: list[Event] = [*first]
    for event in told:
        if isinstance(event, news.PriceChanged) and event.offer_id in known:
            prices.append(replace(event, at_s=min(event.at_s, now_s)))
        elif not isinstance(event, End):
            rest.append(replace(event, at_s=min(event.at_s, now_s)))
        elif event.node_id not in ends or getattr(event, "billed_to_s", None) is not None:
            recorded_s = getattr(event, "billed_to_s", None)
            at_s = latest_s if recorded_s is None else recorded_s
            ends[event.node_id] = replace(event, at_s=min(at_s, now_s))
    return [*sorted([*prices, *ends.values()], key=lambda event: event.at_s), *rest]


log = logging.getLogger("sublet.controller")
ANSWERS_WITHIN_S = 30.0  # wall, of the provider at a start: the budget is not looked at till then
# What is asked for a job, by its owner or after a loss. Its record may have been saved and the kernel not told of it.
_asks = attrgetter("paused", "pools", "gpus", "min_gpus", "max_gpus", "min_on_demand", "weight", "hurry", "deadline_s")


class Recovery:
    """Of one controller, whose parts it brings to where the log ends; it is done with when the controller lives."""

    def __init__(
        self, context: Context, pump: Pump, *, memory: Memory, jobs: Lifecycle, nodes: RentedNodes, orders: Orders
    ) -> None:
        self._context, self._table, self._clock = context, context.table, context.host.clock
        self._pump, self._memory, self._store, self._jobs = pump, memory, memory.store, jobs
        self._nodes, self._groups, self._leases, self._orders = nodes, nodes.groups, nodes.leases, orders

    def claim(self, holder: str, identity: Identity, options: Options, last_s: float) -> None:
        """Hold the store from now on; a controller that had it does nothing more."""
        facts: dict[str, str] = {MetaKey.SERVER_ID: identity.server_id, MetaKey.ERA: str(identity.era)}
        if self._store.get(MetaKey.HEADER) is None:
            facts[MetaKey.HEADER] = header_line(self._nodes.provider.offers, options.limits, UNLIMITED)
        elif self._clock.certain and self._clock.now_s() <= self._latest_end_s(last_s):
            # Agents stay for any controller that is there, also for one that has no time to say anything more. Those
            # that have ended do not: were this a sign of life, a start that fails would have them paid for until now.
            facts[MetaKey.MARK] = mark_text(self._clock)
        if options.settings:
            facts[MetaKey.SETTINGS] = options.settings
        self._store.claim(holder, after=identity.life, facts=facts)

    def _latest_end_s(self, last_s: float) -> float:
        return latest_end_s(last_s, self._nodes.engine.lease_s, self._clock.speedup)

    async def recover(self, options: Options, last_s: float) -> None:
        """Bring the controller to where the log ends, and the world to where the kernel is.

        `last_s` is the cloud time of the last sign of the controller before this one.
        """
        for record in self._memory.jobs():
            self._table.keep(record)
        absence = Absence(self._context, self._pump, self._leases, self._latest_end_s(last_s))
        read = self._memory.read()
        for record in self._table.records.values():
            self._groups.attempts.remember(record)
            failed_ago_s = max(0.0, self._clock.now_s() - record.failed_s) / self._clock.speedup
            record.group.patience.failed_s = self._clock.wall.monotonic() - failed_ago_s
        if self._pump.kernel.seen == 0:
            await self._begin(options.budget)
        else:
            first = self._other_offers(options.limits)
            await self._go_back_to_work(absence, first, read, last_s)
            self._go_on(options.budget)
        self._memory.write()

    async def _begin(self, budget: Budget) -> None:
        """The first controller of this state directory."""
        self._pump.tell(news.BudgetChanged(self._pump.now_s(), budget))
        self._store.put(MetaKey.BUDGET, repr(budget))
        await self._nodes.listen()
        await self._nodes.open_market()

    async def _go_back_to_work(self, absence: Absence, first: list[Event], read: int, last_s: float) -> None:
        kernel = self._pump.kernel
        for node in kernel.cluster.nodes.values():
            if node.phase is not NodePhase.RELEASING:
                self._nodes.engine.expect(node.id, self._leases.token(node.id))
        for job_id, state in kernel.jobs.items():
            if state.gpus:
                record, trains = self._table.records[job_id], state.phase is Phase.RUNNING
                placement, form = told(kernel, record, state.runs_in, kernel.tenancy.placement.get(job_id, ()))
                now_s = self._clock.wall.monotonic()
                record.group.adopt(state.generation, placement, state.batch, trains=trains, wall_s=now_s, form=form)
        self._orders.holding = True  # orders for workers are given when it is known who is still there
        text = f"the controller is back; {read} of {kernel.seen} events replayed"
        self._pump.note(HistoryRow(kind="Recovered", text=text))
        held = list(kernel.cluster.nodes)
        await self._meet_the_world(absence, first, last_s)
        self._repeat_orders(held)
        await self._release_silent_nodes(absence)
        self._orders.holding = False
        self._finish_moves()

    async def _meet_the_world(self, absence: Absence, first: list[Event], last_s: float) -> None:
        """Agents and the market speak from now on; what ended long ago is heard first, then what is on offer now."""
        self._pump.stop_listening()
        await self._nodes.listen()
        await self._open_provider()
        unknown = await self._unknown()  # before all that may lead to a rent: their numbers are taken
        before = [*unknown, *left_behind(self._pump.kernel, self._clock, last_s)]
        if absence.was_too_long:
            await absence.settle(before, first)
        else:
            supply = self._pump.kernel.supply
            self._pump.hear_first(lambda told: [*before, *old_prices_first(told, first, supply.offers)])

    async def _open_provider(self) -> None:
        """One that does not answer now may in a moment, and what is rented there must not be left alone for that."""
        end_s, wait_s = self._clock.wall.monotonic() + ANSWERS_WITHIN_S, 0.2
        while True:
            try:
                await self._nodes.open_market()
                return
            except sqlite3.Error:
                raise
            except Exception as error:  # a cloud can fail in any way
                needs_operator = isinstance(error, SubletError) and not isinstance(error, NoAnswer)
                if needs_operator or self._clock.wall.monotonic() > end_s:
                    raise
                log.warning("the provider cannot be opened (%s), it is asked again in %g s", error, wait_s)
            await self._nodes.provider.close()
            await asyncio.sleep(wait_s)
            if self._clock.certain:  # agents that have come back meanwhile stay for a lease from now
                self._memory.mark()
            wait_s *= 2

    async def _unknown(self) -> Sequence[Event]:
        """Nodes that were rented after this log ends, by a controller whose store was put back to an earlier time."""
        try:
            return await self._nodes.unknown()
        except Exception as error:  # noqa: BLE001 - as in _open_provider; the reaper looks again
            log.warning("the provider cannot be listed (%s): unknown instances are found later", error)
            return ()

    def _other_offers(self, wanted: Mapping[str, Limit]) -> list[Event]:
        """Offers of today and their limits, where that is not what the kernel knows."""
        supply, offers = self._pump.kernel.supply, tuple(self._nodes.provider.offers)
        known = tuple(offer for offer_id, offer in supply.offers.items() if offer_id not in supply.offering.withdrawn)
        limits = {offer.id: wanted.get(offer.id, Limit()) for offer in offers}
        if (
            known == offers
            and {o: limit for o, limit in supply.limits.items() if o not in supply.offering.withdrawn} == limits
        ):
            return []
        try:
            supply.offering.listing(offers, wanted, {})
        except InvalidValue as error:
            hint = "start it as before and 'sublet down', then change it; or begin anew with 'sublet up --fresh'"
            why = f"cannot go on with other offers: {str(error).partition(chr(10))[0]}"
            raise BadInput(self._store.path, why, hint=hint) from error
        return [news.OffersChanged(self._pump.now_s(), offers, dict(wanted))]

    def _repeat_orders(self, held: list[str]) -> None:
        """To rent and to give back, of the last controller; those for other nodes were given a moment ago."""
        for node in [node for node_id, node in self._pump.kernel.cluster.nodes.items() if node_id in held]:
            if node.phase is NodePhase.REQUESTED:  # the same token: at most one node comes of it
                again = self._leases.rent(order.RentNode(node.id, node.offer.id), again=True)
                self._pump.spawn(again, f"rent {node.id}")
            elif node.phase is NodePhase.RELEASING:
                self._orders.carry_out(order.ReleaseNode(node.id))

    async def _release_silent_nodes(self, absence: Absence) -> None:
        """Give agents time to come; a node whose agent stays away is given back, and counts as lost."""
        await absence.wait_for_agents()
        for node_id in absence.silent():
            text = "its agent did not come back: it is given back"
            self._pump.note(HistoryRow(kind="Alarm", node_id=node_id, text=text))
            await self._leases.release_lost(node_id)

    def _finish_moves(self) -> None:
        """Orders that the last controller gave and whose answer it did not hear: give them again."""
        wall_s = self._clock.wall.monotonic()
        for record in self._table.records.values():
            group, known = record.group, record.id in self._pump.kernel.jobs
            if (known and record.outcome) or (not known and group.workers):
                # It has ended: its workers were not told, or the kernel was not, and none is to begin there again.
                group.stop(group.generation + 1, resumable=False, wall_s=wall_s)
            group.all_agents_came(wall_s)
            self._groups.heal(record, held=True)
            self._groups.touch(record)
        self._pump.carry_on()

    def _go_on(self, budget: Budget) -> None:
        self._submit_again()
        for action in list(self._memory.timers.values()):
            self._orders.timers.resume(action)
        if self._store.get(MetaKey.BUDGET) != repr(budget):  # it was started with another one than last time
            self._store.put(MetaKey.BUDGET, repr(budget))
            if budget != self._pump.kernel.supply.budget:  # which may have been changed since
                self._pump.tell(news.BudgetChanged(self._pump.now_s(), budget))
        in_force = self._pump.kernel.supply.budget
        if in_force.besides != budget.besides:  # it has moved to a machine that is paid for, or from one
            in_force = replace(in_force, besides=budget.besides)
            self._pump.tell(news.BudgetChanged(self._pump.now_s(), in_force))
        for record in self._table.records.values():  # what was stopped with the controller may go on
            known = self._pump.kernel.jobs.get(record.id)
            if known is not None and _asks(known.job) != _asks(self._jobs.describe(record)):
                self._jobs.relearn(record)
        if self._pump.kernel.planning:
            self._orders.carry_out(order.MakePlan())
        else:
            self._pump.tell(news.TimerFired(self._pump.now_s(), CheckPurse()))  # look at the budget after the time away

    def _submit_again(self) -> None:
        """A job that was taken, and one that had ended, of which the kernel had not heard."""
        for record in list(self._table.records.values()):
            if record.id not in self._table.submitted:
                self._jobs.submit(record)
            elif self._jobs.budgets.lacks(record):
                self._jobs.budgets.tell(record)
            elif record.id in self._pump.kernel.jobs and record.outcome is Ending.FINISHED:
                self._pump.tell(news.JobFinished(self._pump.now_s(), record.id))
            elif record.id in self._pump.kernel.jobs and record.outcome is Ending.FAILED:
                self._pump.tell(news.JobFailed(self._pump.now_s(), record.id, record.error))
