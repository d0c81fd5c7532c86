"""The cloud in a box: instances are sessions of processes on this machine, under a replayed spot market.

Prices, supply, notices and losses follow a record in cloud time; notices are real, and so is the SIGKILL that takes
every process of an instance. What is rented stands in files, so that a later controller finds it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed, PriceChanged
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import at_least
from sublet.errors import InvalidValue, RentFailed, UnknownName
from sublet.market.reclaim import drawn, taken
from sublet.runtime.agent import processes
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local_market import Due, Fall, Happening, MarketChange, Replay, Strike
from sublet.runtime.providers.local_records import NodeRecord, Records
from sublet.runtime.providers.local_template import Template, TemplateEnded
from sublet.runtime.providers.provider import RentedNode, TellMarket

__all__ = ["LocalProvider"]

NOTICE_S = 120.0  # what AWS documents; best effort
FIRST_LEASE_S = 60.0  # wall seconds that an agent looks for its controller
# What is not installed is left out. The first optimizer of a script imports torch._dynamo: seconds, unless it is there.
PRELOAD = ("torch", "torch._dynamo", "torch.utils.data", "sublet.train.loop")
BIRTH_S = 10.0  # for an agent to say which process it is, after a crash in the middle of a rent
BIRTH_LOOK_S = 0.002
NODE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")  # the names of files are made of it

_log = logging.getLogger(__name__)


class LocalProvider:
    """Rents processes. `market` and `script` are in cloud time, from 0 on, as the simulator's."""

    def __init__(  # noqa: PLR0913 - each is a fact about this cloud
        self,
        *,
        state_dir: Path,
        clock: Clock,
        offers: Sequence[Offer],
        address: str = "",
        market: Iterable[MarketChange] = (),
        script: Sequence[Strike] = (),
        notice_s: float = NOTICE_S,
        boot_s: float = 0.0,
        seed: int = 0,
        lease_s: float = FIRST_LEASE_S,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        at_least("boot_s", boot_s, 0.0)
        self._offers = {offer.id: offer for offer in offers}
        self._clock, self._notice_s, self._boot_s, self._lease_s = clock, notice_s, boot_s, lease_s
        self._address = address or f"unix:{state_dir.resolve() / 'agents.sock'}"
        self._records = Records(state_dir.resolve() / "nodes")
        self._template = Template(preload, state_dir.resolve() / "template.log")
        self._replay = Replay(market, script, notice_s)
        self._rng = np.random.default_rng(seed)
        self._supply: dict[str, int] = {}  # as recorded; an offer that is not in it has no limit
        self._struck: dict[str, int] = {}  # what the script has taken away from it
        self._too_dear: set[str] = set()
        self._nodes: dict[str, NodeRecord] = {}  # that exist, in the order of their rent
        self._pidfds: dict[str, int] = {}
        self._gone: set[str] = set()  # tokens of nodes that existed and do no more
        self._renting = asyncio.Lock()
        self._rents: set[asyncio.Task[None]] = set()
        self._pending = ""  # the node that is being rented
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._replaying: asyncio.Task[None] | None = None
        self._tell: TellMarket = lambda _: None

    @property
    def offers(self) -> Sequence[Offer]:
        """What can be rented here."""
        return tuple(self._offers.values())

    async def open(self, tell: TellMarket) -> None:
        """Find what is rented already, tell the state of the market, and follow it from now on."""
        self._tell = tell
        self._template.start()
        for record in self._records.read():
            await self._find_again(record)
        now_s = self._clock.now_s()
        for change in self._replay.skip_to(now_s):
            self._happen(change)
        self._replaying = asyncio.get_running_loop().create_task(self._follow())

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """Fork an agent, unless this token has one. It is paid for from now on, and ready once it says Hello."""
        renting = asyncio.get_running_loop().create_task(self._rent_once(node_id, offer_id, token))
        self._rents.add(renting)
        renting.add_done_callback(self._rents.discard)
        await asyncio.shield(renting)  # a caller that gives up must not leave half a rent

    async def release(self, node_id: str) -> None:
        """End every process of it; returns when the machine shows none of them any more."""
        if node_id == self._pending:
            async with self._renting:
                pass
        record = self._nodes.pop(node_id, None)
        if record is not None:
            self._unwatch(node_id)
            self._end(record)
        if (ending := self._endings.get(node_id)) is not None:
            await asyncio.shield(ending)

    async def list(self) -> list[RentedNode]:
        """Every node that exists."""
        return [
            RentedNode(
                node_id=record.node_id,
                offer_id=record.offer_id,
                token=record.token,
                began_s=record.began_s,
                instance=f"pid {record.pid}",
            )
            for record in self._nodes.values()
            if processes.alive(record.pid, record.start)
        ]

    async def close(self) -> None:
        """Stop watching; nodes stay, as long as their leases do."""
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
        await asyncio.gather(*self._rents, return_exceptions=True)
        for node_id in [*self._pidfds]:
            self._unwatch(node_id)
        await asyncio.gather(*self._endings.values())
        await self._template.stop()

    # ------------------------------------------------------------------ renting

    async def _rent_once(self, node_id: str, offer_id: str, token: str) -> None:
        async with self._renting:
            known = self._nodes.get(node_id)
            if known is not None and known.token == token:
                return
            if known is not None or not NODE_ID.fullmatch(node_id):
                raise InvalidValue("node_id", node_id, "letters, digits, - _ . and not in use with another token")
            if token in self._gone:
                raise RentFailed(offer_id, "the node of this token was rented, and is gone again")
            self._refuse_what_is_not_for_sale(offer_id)
            await self._rent(NodeRecord(node_id=node_id, offer_id=offer_id, token=token, began_s=self._clock.now_s()))

    def _refuse_what_is_not_for_sale(self, offer_id: str) -> None:
        if offer_id not in self._offers:
            raise UnknownName("offer", offer_id, self._offers)
        if offer_id in self._too_dear:
            raise RentFailed(offer_id, "its price is above our cap")
        supply = self._supply_of(offer_id)
        held = sum(record.offer_id == offer_id for record in self._nodes.values())
        if supply is not None and held >= supply:
            raise RentFailed(offer_id, f"sold out: {supply} can be held, {held} are")

    async def _rent(self, record: NodeRecord) -> None:
        """Intent, fork, fact. Whatever goes wrong, either the node exists and is recorded or neither is."""
        node_id = self._pending = record.node_id
        try:
            self._records.write(record)
            request = {
                "node_id": node_id,
                "token": record.token,
                "address": self._address,
                "notice_file": str(self._records.path(node_id, "notice")),
                "log": str(self._records.path(node_id, "log")),
                "lease_s": self._lease_s,
                "boot_s": self._clock.wall_s(self._boot_s),
            }
            with contextlib.suppress(TemplateEnded):  # whether it forked before it died stands in the life file
                await self._template.fork(request, self._records.new_life(node_id))
            record = await self._born(record)
            if record.pid:
                self._records.write(record)
        except OSError as error:
            self._records.remove(node_id)
            raise RentFailed(record.offer_id, f"it cannot be started: {error}") from error
        finally:
            self._pending = ""
        if not record.pid:
            self._records.remove(node_id)
            raise RentFailed(record.offer_id, "the template ended before it had forked", wait_s=1.0)
        try:
            self._refuse_what_is_not_for_sale(record.offer_id)  # the market has moved meanwhile
        except RentFailed:
            await self._ended(record)
            raise
        self._nodes[node_id] = record
        self._watch(record)

    async def _born(self, record: NodeRecord) -> NodeRecord:
        """The record with its process, as soon as the agent has written it down; without one if there is no agent."""
        for _ in range(round(BIRTH_S / BIRTH_LOOK_S)):
            held = self._records.is_held(record.node_id)
            if (found := self._records.found(record)).pid or not held:
                return found
            await asyncio.sleep(BIRTH_LOOK_S)
        return record

    async def _find_again(self, record: NodeRecord) -> None:
        """A record of an earlier controller: adopt the node, or tell its loss, or forget what never was."""
        record = await self._born(record)
        if not record.pid:
            self._records.remove(record.node_id)
        elif record.boot == self._records.boot and processes.alive(record.pid, record.start):
            self._records.write(record)
            self._nodes[record.node_id] = record
            self._watch(record)
            if record.lost_s is not None:
                self._tell(NodeNoticed(self._clock.now_s(), record.node_id, record.lost_s))
                self._replay.put(record.lost_s, Due(node_ids=(record.node_id,), struck=False))
        else:
            self._end(record)
            self._tell(NodeLost(self._clock.now_s(), record.node_id))

    # ------------------------------------------------------------------ ends

    def _watch(self, record: NodeRecord) -> None:
        """The kernel tells when the agent ends; that it ended before is told at once."""
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(record.pid)
        except ProcessLookupError:
            loop.call_soon(self._lose, record.node_id)
            return
        if not processes.alive(record.pid, record.start):
            os.close(pidfd)
            loop.call_soon(self._lose, record.node_id)
            return
        self._pidfds[record.node_id] = pidfd
        loop.add_reader(pidfd, self._lose, record.node_id)

    def _unwatch(self, node_id: str) -> None:
        if (pidfd := self._pidfds.pop(node_id, None)) is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _lose(self, *node_ids: str) -> None:
        """They are gone, or go now."""
        for node_id in node_ids:
            if (record := self._nodes.pop(node_id, None)) is not None:
                self._unwatch(node_id)
                self._end(record)
                self._tell(NodeLost(self._clock.now_s(), node_id))

    def _end(self, record: NodeRecord) -> None:
        """Clear away what is left of a node, in the background; its record goes last."""
        self._gone.add(record.token)
        task = asyncio.get_running_loop().create_task(self._ended(record))
        self._endings[record.node_id] = task
        task.add_done_callback(lambda _: self._endings.pop(record.node_id, None))

    async def _ended(self, record: NodeRecord) -> None:
        if record.boot == self._records.boot:
            while not await asyncio.to_thread(processes.kill_instance, record.pid, record.start):
                _log.warning("processes of %s do not die; it is still held", record.node_id)
        self._records.remove(record.node_id)

    # ------------------------------------------------------------------ the market

    async def _follow(self) -> None:
        while (next_s := self._replay.next_s()) < float("inf"):
            await asyncio.sleep(max(0.0, self._clock.wall_s(next_s - self._clock.now_s())))
            for happening in self._replay.until(self._clock.now_s()):
                try:
                    self._happen(happening)
                except Exception:  # noqa: BLE001 - a fault of the hearer's; the market goes on
                    _log.exception("%s could not be carried out", happening)

    def _happen(self, what: Happening) -> None:
        now_s = self._clock.now_s()
        match what:
            case PriceChanged():
                self._reprice(replace(what, at_s=now_s))
            case AvailabilityChanged():
                self._resupply(what, now_s)
            case Fall():
                staying = [n for n in self._of(what.offer_id) if self._nodes[n].lost_s is None]
                self._doom(drawn(staying, self._less_struck(what.offer_id, what.nodes), self._rng), what.at_s)
            case Strike():
                self._strike(what)
            case Due():
                held = [node_id for node_id in what.node_ids if node_id in self._nodes]
                if what.struck:
                    self._take_from_supply(held)
                self._lose(*held)

    def _reprice(self, change: PriceChanged) -> None:
        """We never pay more than the cap: the cloud takes its nodes back instead."""
        self._too_dear.discard(change.offer_id)
        cap = self._offers[change.offer_id].cap
        if cap is not None and change.price > cap:
            self._too_dear.add(change.offer_id)
            self._lose(*self._of(change.offer_id))
        self._tell(change)

    def _resupply(self, change: AvailabilityChanged, now_s: float) -> None:
        if change.nodes is None:
            self._supply.pop(change.offer_id, None)
        else:
            self._supply[change.offer_id] = change.nodes
        supply = self._supply_of(change.offer_id)
        self._tell(AvailabilityChanged(now_s, change.offer_id, supply))
        if supply is not None:
            nodes = self._of(change.offer_id)
            lost_s = {n: end_s for n in nodes if (end_s := self._nodes[n].lost_s) is not None}
            self._lose(*taken(nodes, lost_s, supply, max(now_s, change.at_s), self._rng))

    def _doom(self, node_ids: Iterable[str], lost_s: float) -> None:
        """Notices; written down, so that a later controller gives them too."""
        for node_id in node_ids:
            self._nodes[node_id] = replace(self._nodes[node_id], lost_s=lost_s)
            self._records.write(self._nodes[node_id])
            self._tell(NodeNoticed(self._clock.now_s(), node_id, lost_s))

    def _strike(self, strike: Strike) -> None:
        spot = [o.id for o in self._offers.values() if o.market is Market.SPOT]
        offer_ids = [strike.offer_id] if strike.offer_id else spot
        if strike.verb == "restore":
            self._restore(offer_ids, strike.nodes if isinstance(strike.nodes, int) else len(strike.nodes))
            return
        if isinstance(strike.nodes, int):
            staying = [n for n, r in self._nodes.items() if r.offer_id in offer_ids and r.lost_s is None]
            victims = drawn(staying, max(0, len(staying) - strike.nodes), self._rng)
        else:
            victims = [node_id for node_id in strike.nodes if node_id in self._nodes]
        if strike.verb == "notice":
            lost_s = self._clock.now_s() + self._notice_s
            self._doom(victims, lost_s)
            self._replay.put(lost_s, Due(node_ids=tuple(victims), struck=True))
        else:
            self._take_from_supply(victims)
            self._lose(*victims)

    def _take_from_supply(self, node_ids: Sequence[str]) -> None:
        offer_ids = [self._nodes[node_id].offer_id for node_id in node_ids]
        for offer_id in offer_ids:
            self._struck[offer_id] = self._struck.get(offer_id, 0) + 1
        self._tell_supply(offer_ids)

    def _restore(self, offer_ids: Sequence[str], nodes: int) -> None:
        for offer_id in offer_ids:
            back = min(nodes, self._struck.get(offer_id, 0))
            nodes -= back
            if back:
                self._struck[offer_id] -= back
                self._tell_supply([offer_id])

    def _tell_supply(self, offer_ids: Iterable[str]) -> None:
        for offer_id in dict.fromkeys(offer_ids):
            if (supply := self._supply_of(offer_id)) is not None:
                self._tell(AvailabilityChanged(self._clock.now_s(), offer_id, supply))

    def _supply_of(self, offer_id: str) -> int | None:
        recorded = self._supply.get(offer_id)
        return None if recorded is None else self._less_struck(offer_id, recorded)

    def _less_struck(self, offer_id: str, nodes: int) -> int:
        return max(0, nodes - self._struck.get(offer_id, 0))

    def _of(self, offer_id: str) -> Sequence[str]:
        return [node_id for node_id, record in self._nodes.items() if record.offer_id == offer_id]
