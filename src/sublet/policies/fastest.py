"""The fastest that fits, at every change: the price of a change is not asked."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.planning.turns import fastest_shape, serve_in_turn


@dataclass(frozen=True, slots=True)
class Fastest:
    """First come, first served, each in the fastest shape that fits; a change goes as the job makes it."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """With live migration this is known as greedy, through storage as checkpoint and restart."""
        return serve_in_turn(snapshot, fastest_shape).plan()
