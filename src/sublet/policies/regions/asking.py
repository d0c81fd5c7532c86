"""Give a job the best place that there is, and ask for a better one beside: for policies over many places."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from heapq import merge

from sublet.domain.plan import JobState, Plan, Snapshot
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.draft import Draft
from sublet.planning.ranking import arrival
from sublet.policies.regions.places import Place, places_of
from sublet.policies.regions.worth import Clock, clock_of

__all__ = ["Choose", "serve_by_place"]

# Of these places, where it is (None = nowhere), the region where its state lies ("" = there is none yet) and how it
# stands with its deadline: where to be, the best first. Those before the one where it is are to be asked for a node;
# none at all = wait.
Choose = Callable[[Sequence[Place], Place | None, str, Clock], Sequence[Place]]

WAITS = "what there is now costs more than an hour of its work is worth yet"
LOOK_S = 300.0  # who waits looks again: what an hour is worth grows as time passes, and nobody tells
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
