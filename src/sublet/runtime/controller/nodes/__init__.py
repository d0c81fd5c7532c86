"""Rented nodes and their agents: leases, heartbeats, notices, losses."""

from __future__ import annotations

from sublet.runtime.controller.nodes.leases import Leases
from sublet.runtime.controller.nodes.nodes import RentedNodes, paced

__all__ = [
    "Leases",
    "RentedNodes",
    "paced",
]
