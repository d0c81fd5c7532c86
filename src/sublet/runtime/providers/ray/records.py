"""Which Ray node each of our nodes is on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RayClaim"]


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
