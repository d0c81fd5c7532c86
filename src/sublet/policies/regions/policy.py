"""Finish by the deadline for the least money, wherever that is: in any region, on spot or on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.domain.quantity import at_least
from sublet.policies.regions.asking import serve_by_place
from sublet.policies.regions.places import Place
from sublet.policies.regions.worth import Clock, choose

__all__ = ["Regions"]


@dataclass(frozen=True, slots=True)
class Regions:
    """First come, first served, at the size asked for. A job without a deadline takes the cheapest that there is."""

    egress_usd: float = 1.0  # to carry the state of a job into another region: 50 GB at 0.02 USD per GB

    def __post_init__(self) -> None:
        at_least("egress_usd", self.egress_usd, 0.0)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Where an hour of its work costs least of all that it may cost, or wait."""

        def best(places: Sequence[Place], here: Place | None, region: str, clock: Clock) -> list[Place]:
            return choose(places, here, region, clock, self.egress_usd)

        return serve_by_place(snapshot, best)
