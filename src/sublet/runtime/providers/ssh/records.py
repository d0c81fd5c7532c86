"""Which machine each of our nodes is on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HostClaim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClaim:
    """A machine that we hold, or have asked for (`pid` 0)."""

    node_id: str
    offer_id: str
    token: str
    host: str
    began_s: float  # cloud time
    pid: int = 0  # of the agent, over there
