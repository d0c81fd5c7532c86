"""Dealing with the provider: every call may fail, be repeated, or succeed without an answer.

The intent of a call is in the log before it is made, and its token is the same whoever makes it, so that a repeated
call rents nothing twice. A node that may exist is given back until the provider confirms that it does not.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.errors import RentFailed
from sublet.kernel.cluster import NodePhase
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.providers.protocol import Billed

if TYPE_CHECKING:
    from sublet.runtime.controller.loop import Controller

__all__ = ["Leases"]

log = logging.getLogger("sublet.leases")
SWEEP_S = 5.0  # wall, between two comparisons of what we hold with what the provider lists
AGENT_COMES_S = 60.0  # wall: a node whose agent has not come by then is given back
ABSENCES = 3  # listings in a row without a node, before it counts as gone: one proves nothing
RENT_TRIES = 5


class Leases:
    """What the controller does with its provider."""

    def __init__(self, hub: Controller) -> None:
        self._hub = hub
        self._releasing: dict[str, asyncio.Event] = {}  # nodes that are being given back -> it is done
        self._asked: dict[str, asyncio.Event] = {}  # nodes that are being rented -> the answer is there
        self.rented_wall: dict[str, float] = {}  # nodes whose agent has not come yet

    def token(self, node_id: str) -> str:
        """The same for the same node, whoever asks: a repeated order rents nothing new."""
        secret = self._hub.store.get("secret")
        if secret is None:
            secret = secrets.token_hex(32)
            self._hub.store.put("secret", secret)
        return hashlib.sha256(f"{secret} {self._hub.server_id} {node_id}".encode()).hexdigest()

    async def rent(self, action: order.RentNode) -> None:
        """Ask until the answer is clear."""
        answered = self._asked[action.node_id] = asyncio.Event()
        try:
            await self._rent(action)
        finally:
            answered.set()
            del self._asked[action.node_id]

    async def _rent(self, action: order.RentNode) -> None:
        node_id, token = action.node_id, self.token(action.node_id)
        self._hub.engine.expect(node_id, token)
        self.rented_wall[node_id] = time.monotonic()
        wait_s = 0.2
        for attempt in range(RENT_TRIES):
            try:
                await self._hub.provider.rent(node_id, action.offer_id, token)
                self._hub.gauges.count_call("rent", "ok")
                return
            except RentFailed as error:
                self._hub.gauges.count_call("rent", "refused")
                node = self._hub.kernel.cluster.nodes.get(node_id)
                if node is not None and node.phase in (NodePhase.READY, NodePhase.NOTICED):
                    self._hub.hear_market(news.NodeLost(self._hub.now_s(), node_id))  # its agent was quicker
                else:
                    self._hub.tell(news.RentRefused(self._hub.now_s(), node_id, error.why))
                return
            except Exception as error:  # noqa: BLE001 - a cloud can fail in any way; the intent stays until it is clear
                self._hub.gauges.count_call("rent", "error")
                log.warning("renting %s failed (%s), try %d", node_id, error, attempt + 1)
                if node_id in self._releasing:
                    return  # nobody waits for it any more
                await asyncio.sleep(wait_s)
                wait_s *= 2
        billed = await self._give_back(node_id)  # it may exist: only its end is certain
        if billed is not None and not billed.nothing:  # it did, and was paid for
            self._hub.hear_market(news.NodeLost(self._hub.now_s(), node_id, billed.from_s, billed.to_s))
        else:
            self._hub.tell(news.RentRefused(self._hub.now_s(), node_id, "the provider gave no clear answer"))

    async def release(self, node_id: str) -> None:
        """Give a node back; the kernel hears when it is gone."""
        if (under_way := self._releasing.get(node_id)) is not None:
            await under_way.wait()
            return
        done = self._releasing[node_id] = asyncio.Event()
        try:
            await self._release(node_id)
        finally:
            del self._releasing[node_id]
            done.set()

    async def _release(self, node_id: str) -> None:
        if (answered := self._asked.get(node_id)) is not None:
            await answered.wait()  # or the node would come after it was given back
        billed = await self._give_back(node_id)
        self.rented_wall.pop(node_id, None)
        self._hub.router.node_released(node_id, time.monotonic())
        node = self._hub.kernel.cluster.nodes.get(node_id)
        billed = billed or Billed()  # a provider without a record of its own
        facts = (billed.from_s, billed.to_s, billed.nothing)
        if node is not None and node.phase is not NodePhase.RELEASING:
            self._hub.tell(news.NodeLost(self._hub.now_s(), node_id, *facts))
        else:
            self._hub.tell(news.NodeReleased(self._hub.now_s(), node_id, *facts))

    async def _give_back(self, node_id: str) -> Billed | None:
        """Until the provider confirms it: a node that may exist is never forgotten."""
        wait_s = 0.2
        while True:
            try:
                billed = await self._hub.provider.release(node_id)
                self._hub.gauges.count_call("release", "ok")
                return billed
            except Exception as error:  # noqa: BLE001 - as in _rent
                self._hub.gauges.count_call("release", "error")
                self._hub.note(HistoryRow(kind="Alarm", node_id=node_id, text=f"cannot be given back yet: {error}"))
                await asyncio.sleep(wait_s)
                wait_s = min(30.0, wait_s * 2)

    async def sweeping(self) -> None:
        """Compare what we hold with what there is: nothing paid is forgotten, nothing gone is waited for."""
        missed: Counter[str] = Counter()
        while True:
            await asyncio.sleep(SWEEP_S)
            began = time.monotonic()
            try:
                listed = {node.node_id: node for node in await self._hub.provider.list()}
            except Exception as error:  # noqa: BLE001 - the next sweep may do better
                log.warning("the provider cannot be listed: %s", error)
                continue
            for each in listed.values():
                if each.elsewhere:
                    text = "another controller renews it: one of the two state directories is a copy; stop one of them"
                    self._hub.alarms.sound("copy", text, node_id=each.node_id)
            ours = {node_id for node_id, each in listed.items() if not each.elsewhere}
            for node_id in ours - self._hub.kernel.cluster.nodes.keys() - self._releasing.keys():
                self._hub.gauges.orphans += 1
                self._hub.note(
                    HistoryRow(kind="Orphan", node_id=node_id, text="runs but is not ours any more: it is ended")
                )
                self._hub.spawn(self.release(node_id), f"sweep {node_id}")
            for node_id, node in list(self._hub.kernel.cluster.nodes.items()):
                absent = node_id not in listed and node.phase in (NodePhase.READY, NodePhase.NOTICED)
                missed[node_id] = missed[node_id] + 1 if absent else 0
                if missed[node_id] == ABSENCES:  # the provider may know more; and if it is there all the same, it goes
                    self._hub.spawn(self._hub.release_lost(node_id), f"lost {node_id}")
                rented = self.rented_wall.get(node_id)
                boot_s = self._hub.clock.wall_s(node.offer.boot_s)
                if rented is not None and began - rented > AGENT_COMES_S + boot_s:
                    self.rented_wall.pop(node_id)
                    self._hub.note(
                        HistoryRow(kind="Alarm", node_id=node_id, text="its agent never came: it is given back")
                    )
                    self._hub.spawn(self.release(node_id), f"give up {node_id}")
            self._hub.gauges.reconciled(time.monotonic() - began)
