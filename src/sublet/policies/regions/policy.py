"""Finish by the deadline for the least money, wherever that is: in any region, on spot or on demand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

from sublet.domain.plan import JobState, Plan, Snapshot, arrival
from sublet.domain.quantity import at_least
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.draft import Draft
from sublet.policies.regions.places import Place, places_of
from sublet.policies.regions.worth import Clock, choose, clock_of


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


# Of these places, where it is (None = nowhere), the region where its state lies ("" = there is none yet) and how it
# stands with its deadline: where to be, the best first. Those before the one where it is are to be asked for a node;
# none at all = wait.
Choose = Callable[[Sequence[Place], Place | None, str, Clock], Sequence[Place]]

WAITS = "what there is now costs more than an hour of its work is worth yet"
LOOK_S = 300.0  # a waiting job looks again: the worth of an hour grows without an event
SOON_S = 1.0  # the kernel calls for no plan when a node comes that was asked for beside


def serve_by_place(snapshot: Snapshot, choose: Choose) -> Plan:
    """In order of arrival, each in the place of its choice. Cost: O(jobs x pools)."""
    draft = Draft(snapshot)
    left = dict(draft.most)
    again_s = [_serve(state, draft, left, choose) for state in _in_order(snapshot)]
    return draft.plan(min(filter(math.isfinite, again_s), default=None))


def _in_order(snapshot: Snapshot) -> Iterator[JobState]:
    return merge(sorted(snapshot.active.values(), key=_seq), snapshot.waiting.by(arrival), key=_seq)


def _seq(state: JobState) -> int:
    return state.seq


def _serve(state: JobState, draft: Draft, left: dict[str, float], choose: Choose) -> float:
    """When to look again."""
    now_s = draft.snapshot.now_s
    places = places_of(state, draft.snapshot, left)
    here = next((place for place in places if place.is_own and place.is_here and place.has_room), None)
    region = next((place.region for place in places if place.shape.pool == state.lies_in), "")
    clock = clock_of(state, places, now_s)
    wanted = choose(places, here, region, clock)
    if not wanted:
        draft.take(state, WAITS)
        return now_s + min(LOOK_S, clock.waits_h * SECONDS_PER_H)
    best = wanted[0]
    left[best.shape.pool] -= best.shape.gpus
    if here is None or best.is_here:
        draft.give(state, best.shape.pool, best.shape.gpus)
        return math.inf  # what is news to it, it hears: a loss, a price, or that it may ask again
    draft.keep(state)
    draft.hold_spares(best.shape.pool, best.shape.gpus)
    left[here.shape.pool] -= here.shape.gpus
    return now_s + SOON_S
