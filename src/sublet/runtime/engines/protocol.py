"""The contract of everything that runs workers on nodes, and how an engine is made by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sublet.wire.messages import ToAgent, ToController

Hear = Callable[[str, ToController], None]  # (node id, what its agent says)


class Engine(Protocol):
    """Carries messages between the controller and one agent per node; agents start, watch and end workers.

    Order is kept per node. A message to a node whose agent is not connected is dropped (False): the node's loss, or the
    agent's next Hello, tells the controller what became of it.
    """

    @property
    def lease_s(self) -> float:
        """Wall: an agent whose controller is silent for so long ends itself and its node."""
        ...

    async def open(self, hear: Hear) -> None:
        """Let agents come; each begins with Hello, whose token the engine checks. Pings are passed on, too.

        One that may come and speaks another version is cut off, and its Hello is heard with that as its trouble.
        """
        ...

    def expect(self, node_id: str, token: str) -> None:
        """An agent for this node may come, with this token."""
        ...

    def send(self, node_id: str, message: ToAgent) -> bool:
        """Pass it on, if the agent is there."""
        ...

    async def close(self) -> None:
        """Let no agent in any more. Agents and workers stay, until their lease runs out."""
        ...


class MakeEngine(Protocol):
    """The type registered under `sublet.engines`."""

    def __call__(self, address: str, *, lease_s: float, port_field: str) -> Engine:
        """An engine whose agents come to `address`; `port_field` is the setting that names its port, or ""."""
        ...
