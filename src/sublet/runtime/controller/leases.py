"""Dealing with the provider: every call may fail, be repeated, or succeed without an answer.

The intent of a call is in the log before it is made, and its token is the same whoever makes it, so that a repeated
call rents nothing twice. A node that may exist is given back until the provider confirms that it does not: a refusal
says that nothing came of this call, not that nothing came of an earlier one whose answer nobody has heard.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.events import Event
from sublet.domain.timers import CheckPurse
from sublet.errors import RentFailed
from sublet.kernel.cluster import Node, NodePhase
from sublet.machine.rng import RNG, Rng
from sublet.runtime.clock import Clock
from sublet.runtime.controller.access import Access
from sublet.runtime.controller.alarms import AlarmKind, Alarms
from sublet.runtime.controller.gauges import CallOutcome, Gauges
from sublet.runtime.controller.hearing import Hearing
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.lost_time import find_lost_time
from sublet.runtime.controller.paces import PACES, Paces
from sublet.runtime.controller.strangers import Strangers, row_of_end, strangers_among
from sublet.runtime.controller.sweeps import Sweeps
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.providers.paced import PacedProvider
from sublet.runtime.providers.protocol import Billed, MarketNews, RentedNode
from sublet.runtime.store import MetaKey, Store

__all__ = ["Leases", "Tenants"]

log = logging.getLogger("sublet.leases")
LIST_TRIES = 5
LISTED_WITHIN_S = 60.0  # wall: clouds list a new node when they like, within a minute
LATE_S = 50.0  # wall: an end that is not confirmed by then is told, within a minute of its order
REMINDS_S = 3600.0  # wall, between two alarms about one node that cannot be given back
LAST_S = 2.0  # wall, before the latest end of a node's bill: time to end it whatever is still on it


class Tenants(Protocol):
    """Those who have workers on nodes, and must know when one goes."""

    @property
    def agents(self) -> Collection[str]:
        """Nodes whose agent has come."""

    def node_lost(self, node_id: str, wall_s: float, why: str = "") -> Sequence[news.Event]:
        """A node is gone with all on it; `why`, if it is known that the cloud did not take it.

        What the kernel is to hear before it hears of that.
        """

    def node_released(self, node_id: str, wall_s: float) -> None:
        """A node was given back."""

    @property
    def hearing(self) -> Hearing:
        """Which agents are heard."""


class Leases:
    """What is rented from one provider; `server_id` names whoever rents it."""

    def __init__(  # noqa: PLR0913 - whom to ask, and whom to tell
        self,
        inbox: Inbox,
        *,
        provider: PacedProvider,
        engine: Engine,
        tenants: Tenants,
        store: Store,
        server_id: str,
        gauges: Gauges,
        alarms: Alarms,
        clock: Clock,
        rng: Rng = RNG,
        paces: Paces = PACES,
    ) -> None:
        self._inbox, self._provider, self._engine, self._tenants = inbox, provider, engine, tenants
        self._store, self._server_id, self._clock = store, server_id, clock
        self._gauges, self._alarms, self._rng, self._paces = gauges, alarms, rng, paces
        self._releasing: dict[str, asyncio.Event] = {}  # nodes that are being given back -> it is done
        self._asked: dict[str, asyncio.Event] = {}  # nodes that are being rented -> the answer is there
        self._rented_wall: dict[str, float] = {}  # node -> when it was asked for
        self._alarmed: dict[str, float] = {}  # nodes that cannot be given back -> when people were told (wall)
        self._overdue: set[str] = set()  # nodes that were still there after their latest end
        self._closing = False  # nothing is rented any more
        self._sweeps, self._access = Sweeps(), Access(provider.access_left_s, alarms)
        self._watches = False  # what was lost before we did says nothing: nobody was there

    def hear(self, event: MarketNews) -> None:
        """The provider tells."""
        if isinstance(event, news.NodeLost):
            self._rented_wall.pop(event.node_id, None)
            billed = self._in_our_time(event.node_id, Billed(from_s=event.billed_from_s, to_s=event.billed_to_s))
            event = replace(event, billed_from_s=billed.from_s, billed_to_s=billed.to_s)
            self._watch_sweeps(event)
        self._inbox.queue(event)
        self._inbox.wake()

    def _watch_sweeps(self, lost: news.NodeLost) -> None:
        """Where the cloud has taken all nodes of an offer once more, nothing of it is rented for a while."""
        nodes = self._inbox.kernel.cluster.nodes
        node = nodes.get(lost.node_id)
        if node is None or lost.why or not self._watches or node.phase not in (NodePhase.READY, NodePhase.NOTICED):
            return  # the cloud had no part in it, or it was not in use
        offer_id, now_s = node.offer.id, self._inbox.now_s()
        held = [each.id for each in nodes.values() if each.offer.id == offer_id and each.phase is NodePhase.READY]
        times, rest_s = self._sweeps.take(offer_id, node.id, now_s, held)
        if rest_s:
            text = f"all nodes of {offer_id} were taken at once, {times} times in a row: it rests for {rest_s:.0f} s"
            self._inbox.note(HistoryRow(kind="BackOff", text=text))

    def token(self, node_id: str) -> str:
        """The same for the same node, whoever asks: a repeated order rents nothing new."""
        secret = self._store.get(MetaKey.SECRET)
        if secret is None:
            secret = self._rng.token(32)
            self._store.put(MetaKey.SECRET, secret)
        return hashlib.sha256(f"{secret} {self._server_id} {node_id}".encode()).hexdigest()

    def _in_our_time(self, node_id: str, billed: Billed) -> Billed:
        """What a provider has on record, where it shows that our clock had lost some time."""
        lost_s = find_lost_time(node_id, billed.from_s, ledger=self._inbox.kernel.ledger, clock=self._clock)
        if not lost_s or billed.from_s is None:
            return billed
        text = (
            f"began before it was ordered, by the provider's record: the clock was behind, and has {lost_s:.0f} s more"
        )
        self._inbox.note(HistoryRow(kind="Alarm", node_id=node_id, text=text))
        return replace(
            billed, from_s=billed.from_s + lost_s, to_s=None if billed.to_s is None else billed.to_s + lost_s
        )

    async def rent(self, action: order.RentNode, *, again: bool = False) -> None:
        """Ask until the answer is clear; `again`: an earlier controller has asked, and nobody has heard the answer."""
        if (under_way := self._asked.get(action.node_id)) is not None:
            await under_way.wait()
            return
        if self._closing:
            self._inbox.tell(news.RentRefused(self._inbox.now_s(), action.node_id, "the controller ends"))
            return
        if (rest_s := self._sweeps.rest_s(action.offer_id, self._inbox.now_s())) and not again:
            why = f"all of {action.offer_id} was taken again and again: it rests for {rest_s:.0f} s more"
            self._inbox.tell(news.RentRefused(self._inbox.now_s(), action.node_id, why))
            return
        answered = self._asked[action.node_id] = asyncio.Event()
        try:
            await self._rent(action, in_doubt=again)
        finally:
            answered.set()
            del self._asked[action.node_id]

    async def _rent(self, action: order.RentNode, *, in_doubt: bool) -> None:
        node_id, token = action.node_id, self.token(action.node_id)
        self._engine.expect(node_id, token)
        self._rented_wall[node_id] = self._clock.wall.monotonic()
        wait_s, was_there = 0.2, False
        for attempt in range(self._paces.rent_tries):
            self._store.insist()  # a controller that slept may not be the one any more
            try:
                await self._provider.rent(node_id, action.offer_id, token)
                self._gauges.count_call("rent", CallOutcome.OK)
                if node_id in self._rented_wall:  # its turn may have come late
                    self._rented_wall[node_id] = self._clock.wall.monotonic()
                return
            except RentFailed as error:
                self._gauges.count_call("rent", CallOutcome.REFUSED)
                if (was_there := error.was_there) or in_doubt:
                    break  # and was paid for, or may have been
                self._inbox.tell(news.RentRefused(self._inbox.now_s(), node_id, error.why))
                return
            except Exception as error:  # noqa: BLE001 - a cloud can fail in any way; the intent stays until it is clear
                self._gauges.count_call("rent", CallOutcome.ERROR)
                log.warning("renting %s failed (%s), try %d", node_id, error, attempt + 1)
                in_doubt = True
                if node_id in self._releasing:
                    return  # nobody waits for it any more
                await asyncio.sleep(wait_s)
                wait_s *= 2
        billed = await self._give_back(node_id) or (Billed() if was_there else None)  # only its end is certain
        if billed is not None and not billed.nothing:  # it did, and was paid for
            self.hear(news.NodeLost(self._inbox.now_s(), node_id, billed.from_s, billed.to_s))
        else:
            why = "the provider gave no clear answer"  # and without a record nobody knows what came of it
            self._inbox.tell(news.RentRefused(self._inbox.now_s(), node_id, why, paid=billed is None))

    async def release(self, node_id: str) -> None:
        """Give a node back; the kernel hears when it is gone."""
        await self._release_once(node_id)

    async def _release_once(self, node_id: str) -> Billed | None:
        """What it was billed; None if somebody else was giving it back already."""
        if (under_way := self._releasing.get(node_id)) is not None:
            await under_way.wait()
            return None
        self._rented_wall.pop(node_id, None)
        done = self._releasing[node_id] = asyncio.Event()
        try:
            return await self._release(node_id)
        finally:
            del self._releasing[node_id]
            done.set()

    async def release_lost(self, node_id: str) -> None:
        """End a node that does not answer: nobody works there from now on, and the kernel hears when it is gone."""
        for first in self._tenants.node_lost(node_id, self._clock.wall.monotonic()):
            self._inbox.queue(first)
        node, now_s = self._inbox.kernel.cluster.nodes.get(node_id), self._inbox.now_s()
        if node is not None and node.phase is NodePhase.READY:
            self.hear(news.NodeNoticed(now_s, node_id, now_s))
        await self.release(node_id)

    async def _release(self, node_id: str) -> Billed:
        self._provider.withdraw(node_id)
        if (answered := self._asked.get(node_id)) is not None:
            await answered.wait()  # or the node would come after it was given back
        billed = await self._give_back(node_id)
        self._tenants.node_released(node_id, self._clock.wall.monotonic())
        node = self._inbox.kernel.cluster.nodes.get(node_id)
        billed = self._in_our_time(node_id, billed or Billed())  # or it is one without records of its own
        facts = (billed.from_s, billed.to_s, billed.nothing)
        if node is not None and node.phase is not NodePhase.RELEASING:
            self._inbox.tell(news.NodeLost(self._inbox.now_s(), node_id, *facts))
        else:
            self._inbox.tell(news.NodeReleased(self._inbox.now_s(), node_id, *facts))
        return billed

    async def _give_back(self, node_id: str) -> Billed | None:
        """Until the provider confirms it: a node that may exist is never forgotten."""
        wait_s, why = 0.2, "the order was taken, and its end is not confirmed"
        late = asyncio.get_running_loop().call_later(LATE_S, self._not_gone, node_id, why)
        try:
            while True:
                self._store.insist()
                try:
                    billed = await self._provider.release(node_id)
                    self._gauges.count_call("release", CallOutcome.OK)
                    return billed
                except Exception as error:  # noqa: BLE001 - as in _rent
                    self._gauges.count_call("release", CallOutcome.ERROR)
                    self._not_gone(node_id, str(error))
                    await asyncio.sleep(wait_s)
                    wait_s = min(30.0, wait_s * 2)
        finally:
            late.cancel()
            self._alarmed.pop(node_id, None)

    def _not_gone(self, node_id: str, why: str) -> None:
        """It costs on: people must know at once, and need not read it at every try."""
        wall_s = self._clock.wall.monotonic()
        if wall_s - self._alarmed.get(node_id, -REMINDS_S) >= REMINDS_S:
            self._alarmed[node_id] = wall_s
            self._alarms.sound(AlarmKind.RELEASE, f"cannot be given back yet, and costs on: {why}", node_id=node_id)

    def end_strangers(self, found: Strangers, now_s: float) -> list[Event]:
        """The store is older than what is rented; what the kernel must hear of it."""
        text = "the store is older than what is rented, as if an older backup was put back"
        self._alarms.sound(AlarmKind.STORE, f"{text}: what was spent since is not known")
        for row, node in zip(found.rows(), found.nodes, strict=True):
            self._inbox.note(row)
            self._inbox.spawn(self._end_unknown(row.kind, node), f"end {row.node_id}")
        return [found.event(now_s)]

    async def _end_unknown(self, kind: str, node: RentedNode) -> None:
        """End a node that the kernel does not hold, and tell what it cost."""
        if (billed := await self._release_once(node.node_id)) is not None:
            self._inbox.note(row_of_end(kind, node, billed, self._inbox.kernel, self._inbox.now_s()))

    def end_unpaid(self) -> None:
        """The purse pays for a node that is given up until `gone_by_us`, and no longer."""
        kernel = self._inbox.kernel
        if kernel.supply.budget.purse is None or not kernel.supply.purse.giving_up:
            return
        for node in list(kernel.cluster.nodes.values()):
            ahead_s = min(LAST_S * self._clock.speedup, node.offer.wind_down_s / 4)
            latest_us = (self._inbox.now_s() + ahead_s) * 1e6
            if node.phase is NodePhase.RELEASING and self._is_overdue(node):
                self._overdue.add(node.id)
                self._inbox.tell(news.TimerFired(self._inbox.now_s(), CheckPurse()))  # nothing else wakes it for that
            if node.gone_by_us is not None and node.gone_by_us < latest_us and node.phase is not NodePhase.RELEASING:
                text = "is ended now: nothing is left to pay for it"
                self._inbox.note(HistoryRow(kind="Budget", node_id=node.id, text=text))
                self._inbox.spawn(self.release_lost(node.id), f"end {node.id}")

    def _is_overdue(self, node: Node) -> bool:
        """The cloud has not ended it by its latest end, and the kernel has not looked since."""
        ends_us = node.gone_by_us
        return ends_us is not None and ends_us < self._inbox.now_s() * 1e6 and node.id not in self._overdue

    async def release_all(self) -> None:
        """Everything that is held, and then everything that the provider lists all the same."""
        await asyncio.gather(*(self.release(node_id) for node_id in list(self._inbox.kernel.cluster.nodes)))
        for left in await self._list_in_the_end():
            if not left.elsewhere:
                await self._give_back(left.node_id)

    async def _list_in_the_end(self) -> list[RentedNode]:
        """A provider that does not answer must not keep a controller from its end: leases end what it knows of."""
        wait_s, why = 0.2, ""
        for _ in range(LIST_TRIES):
            try:
                return await self._provider.list()
            except Exception as error:  # noqa: BLE001 - as in _rent
                why = str(error)
            await asyncio.sleep(wait_s)
            wait_s *= 2
        text = f"the provider cannot be listed ({why}): if it knows of more than we do, that ends with its lease"
        self._inbox.note(HistoryRow(kind="Alarm", text=text))
        return []

    def rent_no_more(self) -> None:
        """The controller ends: what is lost from now on is not replaced, whatever the last plan wishes."""
        self._closing = True

    async def sweeping(self) -> None:
        """Compare what we hold with what there is: nothing paid is forgotten, nothing gone is waited for."""
        missed: Counter[str] = Counter()
        self._watches = True
        while True:
            await asyncio.sleep(self._paces.sweep_s)
            self._access.look()
            began = self._clock.wall.monotonic()
            try:
                listed = {node.node_id: node for node in await self._provider.list()}
            except Exception as error:  # noqa: BLE001 - the next sweep may do better
                log.warning("the provider cannot be listed: %s", error)
                continue
            for each in listed.values():
                if each.elsewhere:
                    text = "another controller renews it: one of the two state directories is a copy; stop one of them"
                    self._alarms.sound(AlarmKind.COPY, text, node_id=each.node_id)
            if (found := strangers_among(listed.values(), self._inbox.kernel)) is not None:
                for event in self.end_strangers(found, self._inbox.now_s()):
                    self._inbox.tell(event)
            ours = {node_id for node_id, each in listed.items() if not each.elsewhere}
            for node_id in ours - self._inbox.kernel.cluster.nodes.keys() - self._releasing.keys():
                self._gauges.orphans += 1
                self._inbox.note(
                    HistoryRow(kind="Orphan", node_id=node_id, text="runs but is not ours any more: it is ended")
                )
                self._inbox.spawn(self._end_unknown("Orphan", listed[node_id]), f"sweep {node_id}")
            for node_id, node in list(self._inbox.kernel.cluster.nodes.items()):
                absent = node_id not in listed and self._should_be_listed(node, began)
                missed[node_id] = missed[node_id] + 1 if absent else 0
                if missed[node_id] == self._paces.absences:  # the provider may know more
                    self._inbox.spawn(self.release_lost(node_id), f"lost {node_id}")
                if self._agent_is_late(node, began):
                    self._inbox.note(
                        HistoryRow(kind="Alarm", node_id=node_id, text="its agent never came: it is given back")
                    )
                    self._inbox.spawn(self.release(node_id), f"give up {node_id}")
            self._gauges.reconciled(self._clock.wall.monotonic() - began)

    def _should_be_listed(self, node: Node, wall_s: float) -> bool:
        """It is not new, and nobody has heard of it lately: then a listing without it says something."""
        if node.phase not in (NodePhase.READY, NodePhase.NOTICED) and node.id not in self._tenants.hearing.silent:
            return False
        if wall_s - self._rented_wall.get(node.id, -LISTED_WITHIN_S) < LISTED_WITHIN_S:
            return False
        return not self._tenants.hearing.has_spoken(node.id, wall_s - self._paces.sweep_s)

    def _agent_is_late(self, node: Node, wall_s: float) -> bool:
        rented = self._rented_wall.get(node.id)
        if rented is None or node.id in self._asked or node.id in self._tenants.agents:
            return False  # a rent may wait for its turn, however long that takes
        return wall_s - rented > self._paces.agent_comes_s + self._clock.wall_s(node.offer.boot_s)
