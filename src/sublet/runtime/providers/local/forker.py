"""The source of agents: the seams of `Nodes` to the machine that they run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from sublet.runtime.providers.local.lives import Lives

__all__ = ["Forker", "ForkerEnded"]


class ForkerEnded(Exception):
    """It died while it was asked; an agent may have been forked or not."""


class Forker(Protocol):
    """Starts agents on one machine, tells when they end, and ends them."""

    @property
    def lives(self) -> Lives:
        """The agents that live there, of any controller."""

    def start(self) -> None:
        """Get ready, unless it is, without waiting for it."""

    async def warm(self) -> None:
        """Returns when a fork is as quick as it can be."""

    async def fork(self, request: Mapping[str, Any], life: Path) -> None:
        """A new agent, which holds `life` as long as it lives. Raises ForkerEnded, or OSError, as the machine does."""

    def watch(self, pid: int, start: int, died: Callable[[], None]) -> Callable[[], None] | None:
        """Call `died` when this agent ends; how to stop watching. None = it has ended already."""

    async def kill(self, pid: int, start: int) -> bool:
        """End every process of this agent's node; False = some are still there."""

    async def stop(self) -> None:
        """It is needed no longer; agents stay."""
