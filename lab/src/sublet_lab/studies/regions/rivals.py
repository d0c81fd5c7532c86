"""Rivals that look for places, with the same last call and no knowledge but the answers to their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.policies.regions.places import Place
from sublet.policies.regions.policy import serve_by_place
from sublet.policies.regions.worth import Clock, last_call
from sublet_lab.studies.regions.scene import EGRESS_USD


def cheapest_first(places: Sequence[Place], *, steady: bool) -> list[Place]:
    """Places of one market that did not refuse just now, the cheapest first."""
    return sorted((p for p in places if p.steady is steady and p.has_room), key=lambda place: place.usd_per_h)


def spot_of(places: Sequence[Place]) -> list[Place]:
    """The cheapest first."""
    return cheapest_first(places, steady=False)


@dataclass(frozen=True, slots=True)
class OnDemand:
    """The cheapest that lasts, from the start."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """It never moves."""
        return serve_by_place(snapshot, self._choose)

    def _choose(self, places: Sequence[Place], here: Place | None, region: str, clock: Clock) -> Sequence[Place]:
        del region, clock
        return cheapest_first(places, steady=True)[:1] if here is None else [here]


@dataclass(frozen=True, slots=True)
class GreedySpot:
    """The cheapest spot that there is, until it is lost; on demand at the last call alone."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """It does not consider the cost of carrying the state elsewhere."""
        return serve_by_place(snapshot, self._choose)

    def _choose(self, places: Sequence[Place], here: Place | None, region: str, clock: Clock) -> Sequence[Place]:
        last = last_call(places, here, region, clock, EGRESS_USD)
        if last is not None:
            return [last]
        return spot_of(places) if here is None else [here]


@dataclass(frozen=True, slots=True)
class UniformProgress:
    """Can't Be Late (NSDI 24), rebuilt from the paper: a job behind an even pace rents on demand, and stays a while.

    Over several regions it asks the cheapest first, as the variant that SkyNomad's authors compare themselves with.
    """

    def decide(self, snapshot: Snapshot) -> Plan:
        """Spot where there is any."""
        return serve_by_place(snapshot, self._choose)

    def _choose(self, places: Sequence[Place], here: Place | None, region: str, clock: Clock) -> Sequence[Place]:
        last = last_call(places, here, region, clock, EGRESS_USD)
        if last is not None:
            return [last]
        within_h = clock.passed_h + clock.left_h + clock.slack_h
        ahead_h = clock.done_h - clock.passed_h * (clock.done_h + clock.left_h) / within_h
        if here is not None and (not here.steady or ahead_h < 2.0 * clock.pause_h):
            return [here]
        spot = spot_of(places)
        return spot if spot or ahead_h >= 0.0 else cheapest_first(places, steady=True)[:1]
