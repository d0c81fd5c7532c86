"""Dealing with the provider: every call may fail, be repeated, or succeed without an answer.

The intent of a call is in the log before it is made, and its token is the same for every caller, so that a repeated
call rents nothing twice. A node that may exist is given back until the provider confirms that it does not: a refusal
says that nothing came of this call, not that nothing came of an earlier one whose answer was lost.

A mass reclaim is the loss of all nodes that are held of an offer within seconds, two of them at least. After the first,
more is asked for at once: a cloud that has none says so, and is left alone then (kernel/offering.py). A cloud that
gives and takes again is left to rest: each further mass reclaim within a quarter of an hour makes the rest of the offer
twice as long. Until then rents of it are refused here, so that plans go elsewhere. All is cloud time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.timers import CheckPurse
from sublet.errors import RentFailed
from sublet.kernel.cluster import Node, NodePhase
from sublet.runtime.controller.memory import Context
from sublet.runtime.controller.money import find_lost_time
from sublet.runtime.controller.watch import AlarmKind, CallOutcome, HistoryRow
from sublet.runtime.engines.protocol import Engine
from sublet.runtime.providers.pacing import PacedProvider
from sublet.runtime.providers.protocol import Billed, MarketNews, RentedNode
from sublet.runtime.store import MetaKey, Store

TOGETHER_S = 10.0  # within which nodes go in one mass reclaim
FEWEST = 2  # nodes: one that is taken is a reclaim like any other
AGAIN_S = 900.0  # after a mass reclaim, or after its rest: the next one is one more in a row
FIRST_REST_S = 60.0  # after the second, as after a refusal; doubled at each further one
LONGEST_REST_S = 960.0


@dataclass(slots=True)
class _Reclaimed:
    """Of one offer."""

    taken: dict[str, float] = field(default_factory=dict)  # node -> when
    in_a_row: int = 0
    last_s: float = -math.inf
    rests_until_s: float = -math.inf


class MassReclaims:
    """Of one controller; the next one begins with none."""

    def __init__(self) -> None:
        self._offers: defaultdict[str, _Reclaimed] = defaultdict(_Reclaimed)

    def take(self, offer_id: str, node_id: str, now_s: float, held: Collection[str]) -> tuple[int, float]:
        """The cloud took a node while these of its offer were held: (in a row, rest), if that is a mass reclaim."""
        found = self._offers[offer_id]
        found.taken = {node: at_s for node, at_s in found.taken.items() if now_s - at_s <= TOGETHER_S}
        found.taken[node_id] = now_s
        if len(found.taken) < FEWEST or not found.taken.keys() >= set(held):
            return 0, 0.0
        found.taken.clear()
        is_next = now_s <= max(found.last_s, found.rests_until_s) + AGAIN_S
        found.in_a_row, found.last_s = found.in_a_row + 1 if is_next else 1, now_s
        rest_s = 0.0
        if found.in_a_row > 1:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(found.in_a_row - 2, 30))
            found.rests_until_s = now_s + rest_s
        return found.in_a_row, rest_s

    def rest_s(self, offer_id: str, now_s: float) -> float:
        """For how long nothing more is rented of it; 0 = it does not rest."""
        return max(0.0, self._offers[offer_id].rests_until_s - now_s) if offer_id in self._offers else 0.0


log = logging.getLogger("sublet.leases")
LIST_TRIES = 5
LATE_S = 50.0  # wall: an end that is not confirmed by then is told, within a minute of its order
REMINDS_S = 3600.0  # wall, between two alarms about one node that cannot be given back
LAST_S = 2.0  # wall, before the latest end of a node's bill: time to end it whatever is still on it


class Tenants(Protocol):
    """Parts that have workers on nodes, and must know when one goes."""

    def node_lost(self, node_id: str, wall_s: float, why: str = "") -> Sequence[news.Event]:
        """A node is gone with all on it; `why`, if it is known that the cloud did not take it.

        What the kernel is to hear before it hears of that.
        """

    def node_released(self, node_id: str, wall_s: float) -> None:
        """A node was given back."""


class Leases:
    """Of one provider; `server_id` names the tenant."""

    def __init__(
        self,
        context: Context,
        provider: PacedProvider,
        engine: Engine,
        *,
        tenants: Tenants,
        store: Store,
        server_id: str,
    ) -> None:
        self._inbox, self._alarms, self._gauges = context.inbox, context.alarms, context.alarms.gauges
        self._clock, self._rng, self._paces = context.host.clock, context.host.rng, context.host.paces
        self._provider, self._engine, self._tenants = provider, engine, tenants
        self._store, self._server_id = store, server_id
        self._releasing: dict[str, asyncio.Event] = {}  # nodes that are being given back -> it is done
        self._asked: dict[str, asyncio.Event] = {}  # nodes that are being rented -> the answer is there
        self._rented_wall: dict[str, float] = {}  # node -> when it was asked for
        self._alarmed: dict[str, float] = {}  # nodes that cannot be given back -> when people were told (wall)
        self._overdue: set[str] = set()  # nodes that were still there after their latest end
        self._closing = False  # nothing is rented any more
        self._reclaims = MassReclaims()
        self.watches = False  # what was lost before says nothing: no controller was there

    def take_news(self, event: MarketNews) -> None:
        """The provider tells."""
        if isinstance(event, news.NodeLost):
            self._rented_wall.pop(event.node_id, None)
            billed = self._in_our_time(event.node_id, Billed(from_s=event.billed_from_s, to_s=event.billed_to_s))
            event = replace(event, billed_from_s=billed.from_s, billed_to_s=billed.to_s)
            self._watch_mass_reclaims(event)
        self._inbox.queue(event)
        self._inbox.wake()

    def _watch_mass_reclaims(self, lost: news.NodeLost) -> None:
        """Where the cloud has taken all nodes of an offer once more, nothing of it is rented for a while."""
        nodes = self._inbox.kernel.cluster.nodes
        node = nodes.get(lost.node_id)
        if node is None or lost.why or not self.watches or node.phase not in (NodePhase.READY, NodePhase.NOTICED):
            return  # the cloud had no part in it, or it was not in use
        offer_id, now_s = node.offer.id, self._inbox.now_s()
        held = [each.id for each in nodes.values() if each.offer.id == offer_id and each.phase is NodePhase.READY]
        times, rest_s = self._reclaims.take(offer_id, node.id, now_s, held)
        if rest_s:
            text = f"all nodes of {offer_id} were taken at once, {times} times in a row: it rests for {rest_s:.0f} s"
            self._inbox.note(HistoryRow(kind="BackOff", text=text))

    def token(self, node_id: str) -> str:
        """The same for the same node at every call: a repeated order rents nothing new."""
        secret = self._store.get(MetaKey.SECRET)
        if secret is None:
            secret = self._rng.token(32)
            self._store.put(MetaKey.SECRET, secret)
        return hashlib.sha256(f"{secret} {self._server_id} {node_id}".encode()).hexdigest()

    def _in_our_time(self, node_id: str, billed: Billed) -> Billed:
        """A provider's record, put forward where it shows that our clock had lost some time."""
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
        """Ask until the answer is clear; `again`: an earlier controller has asked, and its answer was lost."""
        if (under_way := self._asked.get(action.node_id)) is not None:
            await under_way.wait()
            return
        if self._closing:
            self._inbox.tell(news.RentRefused(self._inbox.now_s(), action.node_id, "the controller ends"))
            return
        if (rest_s := self._reclaims.rest_s(action.offer_id, self._inbox.now_s())) and not again:
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
                    return  # it is not waited for any more
                await asyncio.sleep(wait_s)
                wait_s *= 2
        billed = await self._give_back(node_id) or (Billed() if was_there else None)  # only its end is certain
        if billed is not None and not billed.nothing:  # it did, and was paid for
            self.take_news(news.NodeLost(self._inbox.now_s(), node_id, billed.from_s, billed.to_s))
        else:
            why = "the provider gave no clear answer"  # and without a record it is not known what came of it
            self._inbox.tell(news.RentRefused(self._inbox.now_s(), node_id, why, paid=billed is None))

    async def release(self, node_id: str) -> None:
        """Give a node back; the kernel hears when it is gone."""
        await self.release_once(node_id)

    async def release_once(self, node_id: str) -> Billed | None:
        """Its bill; None if it was being given back already."""
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
        """End a node that does not answer: no job works there from now on, and the kernel hears when it is gone."""
        for first in self._tenants.node_lost(node_id, self._clock.wall.monotonic()):
            self._inbox.queue(first)
        node, now_s = self._inbox.kernel.cluster.nodes.get(node_id), self._inbox.now_s()
        if node is not None and node.phase is NodePhase.READY:
            self.take_news(news.NodeNoticed(now_s, node_id, now_s))
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

    def end_unpaid(self) -> None:
        """The budget pays for a node that is given up until `gone_by_us`, and no longer."""
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

    def is_releasing(self, node_id: str) -> bool:
        """A node is being given back."""
        return node_id in self._releasing

    def asked_wall_s(self, node_id: str) -> float | None:
        """When a node was asked for (wall); None = by an earlier controller, or it is gone."""
        return self._rented_wall.get(node_id)

    def is_asked(self, node_id: str) -> bool:
        """A rent waits for its turn, or for its answer, however long that takes."""
        return node_id in self._asked

    def rent_no_more(self) -> None:
        """The controller ends: what is lost from now on is not replaced, whatever the last plan wishes."""
        self._closing = True
