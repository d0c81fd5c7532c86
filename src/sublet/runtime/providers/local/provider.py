"""The cloud in a box: instances are sessions of processes on this machine, under a replayed spot market.

Prices, supply, notices and losses follow a record in cloud time; notices are real, and so is the SIGKILL that takes
every process of an instance. Rented nodes stand in files, so that a later controller finds them again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed, PriceChanged
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import at_least
from sublet.errors import BadInput, InvalidValue, RentFailed, UnknownName
from sublet.machine.files import FILES, Files
from sublet.market.replay import Fall, MarketChange, ReplayedMarket
from sublet.runtime.agent.devices import found_devices, least_used
from sublet.runtime.agent.nursery import PRELOAD
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local.market import Due, Happening, Replay, Strike
from sublet.runtime.providers.local.nodes import Forker, Nodes, Template, TemplateForker
from sublet.runtime.providers.local.records import NodeRecord, Records
from sublet.runtime.providers.protocol import AtWork, RentedNode, TellMarket

NOTICE_S = 120.0  # what AWS documents; best effort
LOOK_S = 0.2  # wall: how often it is looked how far the jobs have come, where the script follows them
FIRST_LEASE_S = 60.0  # wall seconds that an agent looks for its controller
NODE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")  # the names of files are made of it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Times and facts of the cloud on this machine."""

    address: str = ""  # of the controller; "" = a socket in the state directory
    notice_s: float = NOTICE_S
    boot_s: float = 0.0
    seed: int = 0
    lease_s: float = FIRST_LEASE_S
    preload: Sequence[str] = PRELOAD
    gpus: Sequence[str] | None = None  # of this machine; None = they are looked for


BOX = Box()


class LocalProvider:
    """Rents processes. `market` and `script` are in cloud time, from 0 on, as the simulator's."""

    def __init__(
        self,
        *,
        state_dir: Path,
        clock: Clock,
        offers: Sequence[Offer],
        box: Box = BOX,
        market: Iterable[MarketChange] = (),
        script: Sequence[Strike] = (),
        forker: Forker | None = None,
        files: Files = FILES,
    ) -> None:
        at_least("boot_s", box.boot_s, 0.0)
        home = state_dir.resolve()
        self._offers, self._state_dir = {offer.id: offer for offer in offers}, state_dir
        self._clock, self._notice_s, self._boot_s, self._lease_s = clock, box.notice_s, box.boot_s, box.lease_s
        self._address = box.address or f"unix:{home / 'agents.sock'}"
        self._forker = forker or TemplateForker(Template(box.preload, home / "template.log"))
        records = Records(home / "nodes", files=files, lives=self._forker.lives)
        self._nodes = Nodes(records, self._forker, self._on_death)
        self._market = ReplayedMarket(self._offers, np.random.default_rng(box.seed))
        self._stock = self._market.stock
        self._replay = Replay(market, script, box.notice_s)
        self._gpus = box.gpus
        self._one_by_one = asyncio.Lock()
        self._rents: dict[str, asyncio.Task[None]] = {}
        self._replaying: asyncio.Task[None] | None = None
        self._tell: TellMarket = lambda _: None
        self.at_work: AtWork | None = None  # how far the jobs have come, where losses of the script go by that

    @property
    def offers(self) -> Sequence[Offer]:
        """Offers for rent here."""
        return tuple(self._offers.values())

    async def warm(self) -> None:
        """Let the template import what workers need, so that the first node is as quick as the others."""
        self._forker.start()
        await self._forker.warm()

    def price_age_s(self) -> float | None:
        """Its market is its own: prices are those of this moment."""
        return 0.0

    async def open(self, tell: TellMarket) -> None:
        """Find what is rented already, tell the state of the market, and follow it from now on."""
        self._tell = tell
        self._refuse_a_copy()
        self._forker.start()
        async for record in self._nodes.find_again():
            if record.node_id not in self._nodes.held:
                self._tell(NodeLost(self._clock.now_s(), record.node_id))
            elif record.lost_s is not None:
                self._tell(NodeNoticed(self._clock.now_s(), record.node_id, record.lost_s))
                self._replay.put(record.lost_s, Due(node_ids=(record.node_id,), struck=False))
        share = 0.0 if self.at_work is None else self.at_work.share()
        for change in self._replay.skip_to(self._clock.now_s(), share):
            if isinstance(change, PriceChanged):
                self._reprice(change)  # which counts from when it began, heard or not
            else:
                self._happen(change)
        self._replaying = asyncio.get_running_loop().create_task(self._follow())

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """Fork an agent, unless this token has one. It is paid for from now on, and ready once it says Hello."""
        renting = asyncio.get_running_loop().create_task(self._rent(node_id, offer_id, token))
        self._rents[node_id] = renting
        renting.add_done_callback(lambda _: self._rents.get(node_id) is renting and self._rents.pop(node_id))
        await asyncio.shield(renting)  # a caller that gives up must not leave half a rent

    async def release(self, node_id: str) -> None:
        """End every process of it; returns when the machine shows none of them any more."""
        if (renting := self._rents.get(node_id)) is not None:
            await asyncio.wait([renting])
        if (record := self._nodes.held.get(node_id)) is not None:
            self._nodes.end(record)
        await self._nodes.wait_for_end(node_id)

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
            for record in self._nodes.held.values()
            if self._nodes.records.is_alive(record)
        ]

    async def close(self) -> None:
        """Stop watching; nodes stay, as long as their leases do."""
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
        await asyncio.gather(*self._rents.values(), return_exceptions=True)
        await self._nodes.close()
        await self._forker.stop()

    def _refuse_a_copy(self) -> None:
        """An agent holds a lock in the directory that it came from, also once that is moved; in a copy none does."""
        records = self._nodes.records
        written = [*map(records.with_process, records.read()), *records.damaged()]
        theirs = [record.node_id for record in written if records.is_anothers(record)]
        if theirs:
            why = f"is a copy: the controller of the original has {', '.join(theirs)} on this machine"
            hint = "'sublet up' in the original; or begin anew elsewhere with SUBLET_STATE=/path"
            raise BadInput(self._state_dir, why, hint=hint)

    # ------------------------------------------------------------------ renting

    async def _rent(self, node_id: str, offer_id: str, token: str) -> None:
        async with self._one_by_one:
            known = self._nodes.held.get(node_id)
            if known is not None and known.token == token:
                return
            if known is not None or not NODE_ID.fullmatch(node_id):
                raise InvalidValue("node_id", node_id, "letters, digits, - _ . and not in use with another token")
            if token in self._nodes.gone:
                raise RentFailed(offer_id, "the node of this token was rented, and is gone again", was_there=True)
            self._refuse_what_is_not_for_sale(offer_id)
            gpus, now_s = self._gpus_for(offer_id), self._clock.now_s()
            record = NodeRecord(node_id=node_id, offer_id=offer_id, token=token, began_s=now_s, gpus=gpus)
            born = await self._nodes.fork(record, self._request(record))
            try:
                self._refuse_what_is_not_for_sale(offer_id)  # the market has moved meanwhile
            except RentFailed:
                self._nodes.end(born)
                await self._nodes.wait_for_end(node_id)
                raise
            self._nodes.keep(born)

    def _gpus_for(self, offer_id: str) -> tuple[str, ...]:
        """Those of this machine that the fewest nodes have; none where it has none."""
        if self._gpus is None:
            self._gpus = found_devices(os.environ)
        used = Counter(name for record in self._nodes.held.values() for name in record.gpus)
        return least_used(self._gpus, used, self._offers[offer_id].gpus_per_node)

    def _refuse_what_is_not_for_sale(self, offer_id: str) -> None:
        if offer_id not in self._offers:
            raise UnknownName("offer", offer_id, self._offers)
        if offer_id in self._market.too_dear:
            raise RentFailed(offer_id, "its price is above our cap")
        held = len(self._nodes.of(offer_id))
        if self._market.is_sold_out(offer_id, held):
            raise RentFailed(offer_id, f"sold out: {self._stock.supply(offer_id)} can be held, {held} are")
        staying = sum(self._nodes.held[n].lost_s is None for n in self._nodes.of(offer_id))
        if (to_stay := self._stock.to_stay(offer_id)) is not None and staying >= to_stay:
            raise RentFailed(offer_id, f"sold out: {to_stay} can be kept, {staying} are; others are being taken back")

    def _request(self, record: NodeRecord) -> dict[str, str | float | Sequence[str]]:
        """The facts for the agent."""
        return {
            "node_id": record.node_id,
            "token": record.token,
            "address": self._address,
            "notice_file": str(self._nodes.records.path(record.node_id, "notice")),
            "log": str(self._nodes.records.path(record.node_id, "log")),
            "lease_s": self._lease_s,
            "boot_s": self._clock.wall_s(self._boot_s),
            "gpus": record.gpus,
        }

    # ------------------------------------------------------------------ the market

    async def _follow(self) -> None:
        while (next_s := self._replay.next_s()) < float("inf") or self._replay.awaits_work:
            wait_s = max(0.0, self._clock.wall_s(next_s - self._clock.now_s()))
            await asyncio.sleep(min(wait_s, LOOK_S) if self._replay.awaits_work else wait_s)
            by_work = [] if self.at_work is None else self._replay.reached(self.at_work.share(), self._open_to)
            for happening in [*self._replay.until(self._clock.now_s()), *by_work]:
                try:
                    self._happen(happening)
                except Exception:  # noqa: BLE001 - a fault of the hearer's; the market goes on
                    _log.exception("%s could not be carried out", happening)

    def _happen(self, what: Happening) -> None:
        match what:
            case PriceChanged():
                self._reprice(replace(what, at_s=self._clock.now_s()))
            case AvailabilityChanged():
                self._resupply(what)
            case Fall():
                staying = [n for n in self._nodes.of(what.offer_id) if self._nodes.held[n].lost_s is None]
                self._notice(self._market.notice(what, staying), what.at_s)
            case Strike():
                self._strike(what)
            case Due():
                held = [node_id for node_id in what.node_ids if node_id in self._nodes.held]
                if what.struck:
                    self._take_from_supply(held)
                self._lose(*held)

    def _reprice(self, change: PriceChanged) -> None:
        self._lose(*self._market.reprice(change, self._nodes.of(change.offer_id)))
        self._tell(change)

    def _resupply(self, change: AvailabilityChanged) -> None:
        now_s = self._clock.now_s()
        nodes = self._nodes.of(change.offer_id)
        lost_s = {n: end_s for n in nodes if (end_s := self._nodes.held[n].lost_s) is not None}
        gone = self._market.resupply(change, nodes, lost_s, now_s)
        self._tell(AvailabilityChanged(now_s, change.offer_id, self._stock.supply(change.offer_id)))
        self._lose(*gone)

    def _open_to(self, strike: Strike) -> Sequence[str]:
        """The nodes to draw from; for one that comes by work those on which a job trains."""
        spot = {offer.id for offer in self._offers.values() if offer.market is Market.SPOT}
        offer_ids = {strike.offer_id} if strike.offer_id else spot
        staying = [n for n, r in self._nodes.held.items() if r.offer_id in offer_ids and r.lost_s is None]
        if strike.share is None or self.at_work is None:
            return staying
        at_work = self.at_work.nodes()
        return [node_id for node_id in staying if node_id in at_work]

    def _strike(self, strike: Strike) -> None:
        if strike.verb == "restore":
            nodes = strike.nodes if isinstance(strike.nodes, int) else len(strike.nodes)
            spot = [offer.id for offer in self._offers.values() if offer.market is Market.SPOT]
            self._tell_supply(self._stock.restore([strike.offer_id] if strike.offer_id else spot, nodes))
            return
        if isinstance(strike.nodes, int):
            victims = self._market.draw(self._open_to(strike), strike.nodes)
        else:
            victims = [node_id for node_id in strike.nodes if node_id in self._nodes.held]
        if strike.verb == "notice":
            lost_s = self._clock.now_s() + self._notice_s
            self._notice(victims, lost_s)
            self._replay.put(lost_s, Due(node_ids=tuple(victims), struck=True))
        else:
            self._take_from_supply(victims)
            self._lose(*victims)

    def _notice(self, node_ids: Iterable[str], lost_s: float) -> None:
        for node_id in node_ids:
            self._nodes.doom(node_id, lost_s)
            self._tell(NodeNoticed(self._clock.now_s(), node_id, lost_s))

    def _on_death(self, node_id: str) -> None:
        """Its agent has ended, and was not killed here; one that is being taken may go a little early."""
        record = self._nodes.held.get(node_id)
        self._lose(node_id, why="its agent ended" if record is not None and record.lost_s is None else "")

    def _lose(self, *node_ids: str, why: str = "") -> None:
        """They are gone, or go now."""
        for node_id in node_ids:
            if (record := self._nodes.held.get(node_id)) is not None:
                self._nodes.end(record)
                self._tell(NodeLost(self._clock.now_s(), node_id, why=why))

    def _take_from_supply(self, node_ids: Sequence[str]) -> None:
        offer_ids = [self._nodes.held[node_id].offer_id for node_id in node_ids]
        for offer_id in offer_ids:
            self._stock.strike(offer_id)
        self._tell_supply(dict.fromkeys(offer_ids))

    def _tell_supply(self, offer_ids: Iterable[str]) -> None:
        for offer_id in offer_ids:
            if (supply := self._stock.supply(offer_id)) is not None:
                self._tell(AvailabilityChanged(self._clock.now_s(), offer_id, supply))
