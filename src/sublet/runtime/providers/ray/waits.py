"""Waiting at Ray's autoscaler for nodes that do not exist yet.

A request that waits for resources at Ray makes its autoscaler get a node. Our waits are placement groups of this
process, so they end with it; a request to the autoscaler would stay when we are gone, and so would the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from sublet.machine.wall import WALL, Wall
from sublet.runtime.providers.ray.cluster import Cluster
from sublet.runtime.providers.ray.config import NodeKind

__all__ = ["StewardWaits"]

WAIT_S = 900.0  # for a node to come, while jobs want it
KEEP_S = 60.0  # that a node which came is kept for us


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
