"""The stewards of one controller: started where they are needed, found again after a restart, asked and believed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.errors import StewardGone, SubletError
from sublet.machine.wall import WALL, Wall
from sublet.runtime.providers.ray.cluster import Cluster

__all__ = ["RayClaim", "Stewards"]

START_S = 60.0  # for Ray to start one
REST_S = 30.0  # before we try again on a node where it could not be started


@dataclass(frozen=True, slots=True, kw_only=True)
class RayClaim:
    """A Ray node that we hold, or have asked for (`pid` 0)."""

    node_id: str
    offer_id: str
    token: str
    ray_node: str
    began_s: float  # cloud time
    host: str = ""
    port: int = 0  # of its life line
    pid: int = 0  # of the agent, over there


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """An actor that answers, and where its life lines are."""

    actor: Any
    host: str
    port: int


class Stewards:
    """At most one per Ray node and namespace. All verbs may raise NoAnswer: then the outcome is unknown."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        preload: Iterable[str],
        idle_s: float,
        *,
        wall: Wall = WALL,
    ) -> None:
        self._cluster, self._facts, self._wall = cluster, (namespace, tuple(preload), idle_s), wall
        self._cards: dict[str, asyncio.Task[_Card]] = {}  # by Ray node
        self._found: dict[str, Any] = {}  # actors of an earlier controller, by Ray node: they may hold something
        self._failed_s: dict[str, float] = {}  # monotonic

    async def open(self) -> None:
        """Find those that an earlier controller left."""
        self._found = await asyncio.to_thread(self._cluster.stewards, self._facts[0])
        for ray_node, actor in self._found.items():
            self._cards[ray_node] = asyncio.get_running_loop().create_task(self._greet(actor))

    @property
    def places(self) -> Sequence[str]:
        """The Ray nodes where there is one."""
        return tuple(self._cards)

    def rests(self, ray_node: str) -> bool:
        """It could not be started there a moment ago."""
        return self._wall.monotonic() - self._failed_s.get(ray_node, -REST_S) < REST_S

    async def card(self, ray_node: str) -> _Card:
        """The one there; the first to ask starts it."""
        task = self._known(ray_node)
        if task is None:
            task = self._cards[ray_node] = asyncio.get_running_loop().create_task(self._start(ray_node))
        try:
            return await asyncio.shield(task)
        except Exception as error:
            self._failed_s[ray_node] = self._wall.monotonic()
            if isinstance(error, StewardGone) or ray_node not in self._found:
                self.forget(ray_node)
            raise

    async def warm(self, ray_node: str) -> None:
        """Returns when workers can start there at once."""
        card = await self.card(ray_node)
        try:
            await self._cluster.call(card.actor, "warm", wait_s=START_S)
        except StewardGone:
            self.forget(ray_node)
            raise

    async def begin(self, claim: RayClaim, request: Mapping[str, Any], reserves: Mapping[str, float]) -> RayClaim | str:
        """The claim with its agent, or why not."""
        card = await self.card(claim.ray_node)
        record = {"node_id": claim.node_id, "offer_id": claim.offer_id, "token": claim.token}
        try:
            facts = ({**record, "began_s": claim.began_s}, dict(request), dict(reserves))
            born = await self._cluster.call(card.actor, "begin", *facts)
        except StewardGone as error:
            self.forget(claim.ray_node)
            return f"the steward there has ended: {error.why}"
        return str(born["refused"]) if "refused" in born else _claim_from(born, claim.ray_node, card)

    async def held_on(self, ray_node: str) -> Sequence[RayClaim] | None:
        """The nodes that exist there; None = unknown. It also learns that it is still wanted."""
        if (task := self._known(ray_node)) is None:
            return []
        try:
            card = await asyncio.shield(task)
            records = await self._cluster.call(card.actor, "held")
        except StewardGone:
            self.forget(ray_node)
            return []
        except SubletError:  # none of them says that the node is gone
            return None
        return [_claim_from(record, ray_node, card) for record in records]

    async def end(self, ray_node: str, node_id: str) -> bool:
        """Returns when nothing of the node is left; False = there was no steward, so nothing was left before."""
        if (task := self._known(ray_node)) is None:
            return False
        try:
            card = await asyncio.shield(task)
            await self._cluster.call(card.actor, "end", node_id)
        except StewardGone:
            self.forget(ray_node)
            return False
        except SubletError:
            alive = {node.id for node in await asyncio.to_thread(self._cluster.look)}
            if ray_node in alive:
                raise
            self.forget(ray_node)
            return False
        return True

    async def end_quietly(self, ray_node: str, node_id: str) -> None:
        """End what may be left of a node that is gone."""
        with contextlib.suppress(Exception):  # the sweeper looks again, and the lease ends it in any case
            await self.end(ray_node, node_id)

    def forget(self, ray_node: str) -> None:
        """It is gone; the next to ask starts another."""
        self._found.pop(ray_node, None)
        if (task := self._cards.pop(ray_node, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """They stay, as long as they hold something and for a while longer."""
        for ray_node in self.places:
            self.forget(ray_node)

    def _known(self, ray_node: str) -> asyncio.Task[_Card] | None:
        """The one there, if any; one that was found and did not answer is asked again, for it holds what it held."""
        task = self._cards.get(ray_node)
        if task is not None and task.done() and task.exception() is not None and ray_node in self._found:
            task = self._cards[ray_node] = asyncio.get_running_loop().create_task(self._greet(self._found[ray_node]))
        return task

    async def _start(self, ray_node: str) -> _Card:
        return await self._greet(await asyncio.to_thread(self._cluster.steward, ray_node, *self._facts))

    async def _greet(self, actor: Any) -> _Card:
        told = await self._cluster.call(actor, "ready", wait_s=START_S)
        return _Card(actor=actor, host=told["host"], port=told["port"])


def _claim_from(record: Mapping[str, Any], ray_node: str, card: _Card) -> RayClaim:
    names = ("node_id", "offer_id", "token", "began_s", "pid")
    claim = RayClaim(**{name: record[name] for name in names}, ray_node=ray_node)
    return replace(claim, host=card.host, port=card.port)
