"""Instances that the log does not know, and those that it knows in vain: what is held is compared with what exists.

Nodes that carry our mark and that the log has never heard of mean that an older backup of the store was put back. What
was rented since the backup still runs and is paid for. It is found by its mark, ended, and told with what it has cost
until its end, as far as the provider knows. That is in the history and not in the ledger: the ledger is what the log
lets anybody compute again, and the orders and prices that this cost follows from are in a log that is gone. It is the
same with a node that runs on after its bill has ended, because its provider had said that it was gone. The number of an
unknown instance is not given out again: the token of a node follows from its name, and a cloud that has seen a token
before gives the old node for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sublet.domain import events as news
from sublet.domain.events import Event
from sublet.kernel.cluster import Node, NodePhase
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.memory import Context
from sublet.runtime.controller.nodes.leases import Leases
from sublet.runtime.controller.watch import Access, AlarmKind, HistoryRow
from sublet.runtime.providers.pacing import PacedProvider
from sublet.runtime.providers.protocol import Billed, RentedNode

log = logging.getLogger("sublet.leases")
LISTED_WITHIN_S = 60.0  # wall: clouds list a new node when they like, within a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownInstances:
    """Nodes that are listed beyond the last one that this log asked for."""

    nodes: tuple[RentedNode, ...]
    highest: int

    def event(self, now_s: float) -> news.NodesFound:
        """For the kernel."""
        return news.NodesFound(now_s, self.highest)

    def rows(self) -> list[HistoryRow]:
        """For people: what is ended. What it cost is told when it has (`row_of_end`)."""
        text = "was rented after this log ends, and is ended"
        return [HistoryRow(kind="Stranger", node_id=node.node_id, text=text) for node in self.nodes]


def unknown_among(listed: Iterable[RentedNode], kernel: Kernel) -> UnknownInstances | None:
    """Those of ours that cannot be, if the log is all that ever happened; None without any."""
    found = {_number(node.node_id): node for node in listed if not node.elsewhere}
    found = {number: node for number, node in found.items() if number > kernel.supply.numbered}
    return UnknownInstances(nodes=tuple(found.values()), highest=max(found)) if found else None


def _number(node_id: str) -> int:
    """0 = it is not one of our names."""
    digits = node_id.removeprefix("n")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0  # noqa: PLR2004 - more were never rented


def row_of_end(kind: str, node: RentedNode, billed: Billed, kernel: Kernel, now_s: float) -> HistoryRow:
    """For people: a node that no open lease is of has ended, and what it cost that the bill does not have."""
    ended = [lease.end_us for lease in kernel.ledger.closed if lease.node_id == node.node_id and not lease.void]
    since_s = (node.began_s or None) if billed.from_s is None else billed.from_s
    if ended and (end_us := ended[-1]) is not None:
        since_s = end_us / 1e6 if since_s is None else max(since_s, end_us / 1e6)
    offer = kernel.supply.offers.get(node.offer_id)
    if billed.nothing:
        text = "has ended, and cost nothing"
    elif offer is None or since_s is None:
        text = "has ended; what it has cost is not known here, and is not in this bill"
    else:
        held_s = max(0.0, (now_s if billed.to_s is None else billed.to_s) - since_s)
        hours = (held_s if ended else max(held_s, offer.minimum_billing_s)) / 3600.0
        usd = kernel.ledger.price(node.offer_id).usd_per_h * hours
        text = f"has ended: about USD {usd:.4f} for {hours:.2f} h of {node.offer_id} are not in this bill"
    return HistoryRow(kind=kind, node_id=node.node_id, text=text)


class OrphanReaper:
    """Compares what is held with what the provider lists: nothing paid is forgotten, nothing gone is waited for."""

    def __init__(
        self, context: Context, leases: Leases, provider: PacedProvider, has_spoken: Callable[[str, float], bool]
    ) -> None:
        self._inbox, self._nodes, self._alarms = context.inbox, context.nodes, context.alarms
        self._clock, self._paces = context.host.clock, context.host.paces
        self._leases, self._provider, self._has_spoken = leases, provider, has_spoken
        self._access = Access(provider.access_left_s, context.alarms)

    def end_all(self, found: UnknownInstances, now_s: float) -> list[Event]:
        """The store is older than what is rented; what the kernel must hear of it."""
        text = "the store is older than what is rented, as if an older backup was put back"
        self._alarms.sound(AlarmKind.STORE, f"{text}: what was spent since is not known")
        for row, node in zip(found.rows(), found.nodes, strict=True):
            self._inbox.note(row)
            self._inbox.spawn(self._end_unknown(row.kind, node), f"end {row.node_id}")
        return [found.event(now_s)]

    async def _end_unknown(self, kind: str, node: RentedNode) -> None:
        """End a node that the kernel does not hold, and tell what it cost."""
        if (billed := await self._leases.release_once(node.node_id)) is not None:
            self._inbox.note(row_of_end(kind, node, billed, self._inbox.kernel, self._inbox.now_s()))

    async def run(self) -> None:
        """For ever, now and then."""
        missed: Counter[str] = Counter()
        self._leases.watches = True
        while True:
            await asyncio.sleep(self._paces.sweep_s)
            self._access.check()
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
            if (found := unknown_among(listed.values(), self._inbox.kernel)) is not None:
                for event in self.end_all(found, self._inbox.now_s()):
                    self._inbox.tell(event)
            ours = {node_id for node_id, each in listed.items() if not each.elsewhere}
            for node_id in ours - self._inbox.kernel.cluster.nodes.keys():
                if self._leases.is_releasing(node_id):
                    continue
                self._alarms.gauges.orphans += 1
                self._inbox.note(
                    HistoryRow(kind="Orphan", node_id=node_id, text="runs but is not ours any more: it is ended")
                )
                self._inbox.spawn(self._end_unknown("Orphan", listed[node_id]), f"sweep {node_id}")
            for node_id, node in list(self._inbox.kernel.cluster.nodes.items()):
                absent = node_id not in listed and self._should_be_listed(node, began)
                missed[node_id] = missed[node_id] + 1 if absent else 0
                if missed[node_id] == self._paces.absences:  # the provider may know more
                    self._inbox.spawn(self._leases.release_lost(node_id), f"lost {node_id}")
                if self._agent_is_late(node, began):
                    self._inbox.note(
                        HistoryRow(kind="Alarm", node_id=node_id, text="its agent never came: it is given back")
                    )
                    self._inbox.spawn(self._leases.release(node_id), f"give up {node_id}")
            self._alarms.gauges.reconciled(self._clock.wall.monotonic() - began)

    def _should_be_listed(self, node: Node, wall_s: float) -> bool:
        """It is not new, and was not heard lately: then a listing without it says something."""
        if node.phase not in (NodePhase.READY, NodePhase.NOTICED) and node.id not in self._nodes.silent:
            return False
        asked_wall_s = self._leases.asked_wall_s(node.id)
        if asked_wall_s is not None and wall_s - asked_wall_s < LISTED_WITHIN_S:
            return False
        return not self._has_spoken(node.id, wall_s - self._paces.sweep_s)

    def _agent_is_late(self, node: Node, wall_s: float) -> bool:
        asked_wall_s = self._leases.asked_wall_s(node.id)
        if asked_wall_s is None or self._leases.is_asked(node.id) or node.id in self._nodes.agents:
            return False
        return wall_s - asked_wall_s > self._paces.agent_comes_s + self._clock.wall_s(node.offer.boot_s)
