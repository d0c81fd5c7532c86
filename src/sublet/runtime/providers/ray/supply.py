"""Which nodes of the cluster can be had, by kind, and waiting at Ray's autoscaler for those that do not exist yet.

A request that waits for resources at Ray makes its autoscaler get a node. Our waits are placement groups of this
process, so they end with it; a request to the autoscaler would stay when we are gone, and so would the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.machine.wall import WALL, Wall
from sublet.runtime.providers.ray.cluster import Cluster
from sublet.runtime.providers.ray.config import NodeKind, RayNode

__all__ = ["StewardWaits", "Supply"]

WAIT_S = 900.0  # for a node to come, while jobs want it
KEEP_S = 60.0  # that a node which came is kept for us
SETTLE_S = 3.0  # until Ray has heard that what we gave back is free


@dataclass(slots=True)
class _Wait:
    offer_id: str
    group: Any
    until_s: float  # monotonic
    ray_node: str = ""  # that came


class StewardWaits:
    """All of one controller."""

    def __init__(self, cluster: Cluster, *, wall: Wall = WALL) -> None:
        self._cluster, self._wall = cluster, wall
        self._waits: list[_Wait] = []

    def count(self, offer_id: str) -> int:
        """How many nodes of this offer we wait for, or keep."""
        return sum(wait.offer_id == offer_id for wait in self._waits)

    def came(self, offer_id: str) -> list[str]:
        """Ray nodes that came, and are kept for us."""
        return [wait.ray_node for wait in self._waits if wait.offer_id == offer_id and wait.ray_node]

    async def begin(self, offer_id: str, kind: NodeKind) -> None:
        """Wait for one more."""
        group = await asyncio.to_thread(self._cluster.ask_for, kind.reserves)
        self._waits.append(_Wait(offer_id, group, self._wall.monotonic() + WAIT_S))

    async def look(self) -> None:
        """See what has come; give back what is not wanted any more."""
        for wait in list(self._waits):
            if not wait.ray_node:
                wait.ray_node = await asyncio.to_thread(self._cluster.given, wait.group)
                if wait.ray_node:
                    wait.until_s = self._wall.monotonic() + KEEP_S
            if self._wall.monotonic() > wait.until_s:
                await self._end(wait)

    async def take(self, ray_node: str) -> None:
        """The resources kept for us there are for us to reserve now."""
        for wait in [wait for wait in self._waits if wait.ray_node == ray_node]:
            await self._end(wait)

    async def close(self) -> None:
        """Wait no longer."""
        for wait in list(self._waits):
            with contextlib.suppress(Exception):  # they end with this process in any case
                await self._end(wait)

    async def _end(self, wait: _Wait) -> None:
        self._waits.remove(wait)
        await asyncio.to_thread(self._cluster.withdraw, wait.group)


class Supply:
    """Nodes as they were last listed; `kinds` are by offer."""

    def __init__(self, kinds: Mapping[str, NodeKind], *, wall: Wall = WALL) -> None:
        self.kinds, self._wall = kinds, wall
        self.listed: dict[str, RayNode] = {}  # that live, by Ray's name
        self.doubted: set[str] = set()  # Ray nodes that do not answer, though Ray says that they live
        self._freed_s: dict[str, float] = {}  # Ray node -> when we gave it back, monotonic
        self._last: dict[str, int] = {}  # offer -> supply as it was last told

    def list(self, nodes: Sequence[RayNode]) -> None:
        """The present state of Ray."""
        self.listed = {node.id: node for node in nodes}
        self.doubted &= self.listed.keys()

    def free(self, ray_node: str) -> None:
        """We have just given it back."""
        self._freed_s[ray_node] = self._wall.monotonic()

    def kind_of(self, node: RayNode) -> NodeKind | None:
        """The first that it fits."""
        return next((kind for kind in self.kinds.values() if kind.fits(node)), None)

    def kept_warm(self, node: RayNode) -> bool:
        """Not where nodes are autoscaled: Ray would think that our steward uses them, and never give them back."""
        kind = self.kind_of(node)
        return kind is not None and not kind.autoscaled and node.ends_unix_s is None

    def free_nodes(self, kind: NodeKind) -> Sequence[str]:
        """Places where one of this kind could be rented."""
        return [node.id for node in self.listed.values() if self.kind_of(node) is kind and self._is_free(kind, node)]

    def changes(self, ours: Container[str]) -> Iterator[tuple[str, int]]:
        """Offers whose supply is another than it was, with how many there are; we hold the nodes in `ours`."""
        of_kind = [(self.kind_of(node), node) for node in self.listed.values()]
        for offer_id, kind in self.kinds.items():
            nodes = [node for found, node in of_kind if found is kind]
            held = sum(node.id in ours and node.ends_unix_s is None for node in nodes)
            supply = held + sum(node.id not in ours and self._is_free(kind, node) for node in nodes)
            if kind.most is not None:
                supply = kind.most if kind.autoscaled else min(kind.most, supply)
            if self._last.get(offer_id) != supply:
                self._last[offer_id] = supply
                yield offer_id, supply

    def _is_free(self, kind: NodeKind, node: RayNode) -> bool:
        if node.ends_unix_s is not None or node.id in self.doubted:
            return False
        freed_s = self._freed_s.get(node.id)
        return kind.is_free(node) or (freed_s is not None and self._wall.monotonic() - freed_s < SETTLE_S)
