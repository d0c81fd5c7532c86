"""Places where a job could be, what an hour there costs, and how long it lasts: all that a snapshot tells of places.

No cloud tells how much spot there is. A node is asked for where the job would move if it came, so asking costs nothing:
a refusal is free, and a node that comes is used. Refusals and losses are the knowledge of a place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sublet.domain.job import Change
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, OfferState, Pool, Snapshot
from sublet.domain.shape import Shape, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.widths import runnable

# Chosen on the tuning windows of `sublet study regions`.
SEEN_H = 4.0  # of holding a node, that the listed hazard counts as
UP = 0.7  # of the time that spot can be had where none was asked for yet
DOWN_H = 1.0  # that a refusal is expected to last, at first; later as long again as it has lasted
REFUSED_S, REFUSED_MOST_S = 60.0, 960.0  # how the kernel asks again: twice as long after each refusal, up to this


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A pool as one job sees it."""

    shape: Shape
    region: str
    steady: bool  # on demand: it is not taken back
    usd_per_h: float
    left_h: float  # to the end of the job's work, pauses aside
    pause_h: float  # before it trains there, once it is asked for
    lost_per_h: float
    up: float  # chance that a node is to be had
    back_h: float  # until one is to be had, as far as anyone knows
    has_room: bool  # as far as anyone knows
    is_own: bool  # the job is there, or was promised to be
    is_here: bool  # a node is there for it


def places_of(state: JobState, snapshot: Snapshot, left: Mapping[str, float]) -> list[Place]:
    """All in which it makes progress, if a node is to be had; `left` is the GPUs that others leave, by pool."""
    found = []
    for name, pool in snapshot.pools.items():
        own = state.shape is not None and state.shape.pool == name
        most = state.job.gpus if math.isinf(left[name]) else left[name]
        widths = runnable(state, pool, max(most, state.job.min_gpus), state.done)
        if not widths:
            continue
        fits = [each for each in widths if each.gpus <= state.job.gpus] or widths[:1]
        gpus = state.shape.gpus if own and state.shape is not None and state.shape.gpus <= most else fits[-1].gpus
        found.append(_place(state, pool, gpus, snapshot, has_room=left[name] >= gpus))
    return found


def _place(state: JobState, pool: Pool, gpus: int, snapshot: Snapshot, *, has_room: bool) -> Place:
    offers = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
    cheapest = min(offers, key=lambda each: (each.most < 1, each.price, each.offer.id))
    nodes = math.ceil(gpus / pool.gpus_per_node)
    steady = cheapest.offer.market is Market.ON_DEMAND
    shape, job, now_s = Shape(pool.name, gpus), state.job, snapshot.now_s
    spread = packed(gpus, pool.gpus_per_node)
    left_s = job.speed_on(shape).seconds(pool.gpu, spread, state.done_at(now_s), job.work)
    pause_s = cheapest.offer.boot_s + job.pause_s(Change(was=None, now=shape))
    ready = sum(each.held - each.coming for each in offers) * pool.gpus_per_node
    own = state.shape is not None and state.shape.pool == pool.name
    return Place(
        shape=shape,
        region=cheapest.offer.region or cheapest.offer.zone,
        steady=steady,
        usd_per_h=nodes * cheapest.price.usd_per_h,
        left_h=left_s / SECONDS_PER_H,
        pause_h=pause_s / SECONDS_PER_H,
        lost_per_h=0.0 if steady else nodes * _lost_per_node_h(cheapest),
        up=1.0 if steady else UP,
        back_h=_back_h(cheapest),
        has_room=has_room,
        is_own=own,
        is_here=(own and state.gpus > 0) or ready - snapshot.promised[pool.name] >= gpus,
    )


def _lost_per_node_h(state: OfferState) -> float:
    """Listed prices, and what has been seen."""
    return (SEEN_H * state.offer.hazard_per_h + state.lost) / (SEEN_H + state.held_h)


def _back_h(state: OfferState) -> float:
    """A place that refused for long refuses for as long again."""
    in_a_row = min(state.refused, 1 + round(math.log2(REFUSED_MOST_S / REFUSED_S)))
    down_s = REFUSED_S * (2.0**in_a_row - 1) + REFUSED_MOST_S * (state.refused - in_a_row)
    return max(DOWN_H, down_s / SECONDS_PER_H)
