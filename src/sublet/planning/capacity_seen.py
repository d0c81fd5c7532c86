"""How many GPUs a pool has had for one job: its history as a look ahead reads it."""

from __future__ import annotations

import math

import numpy as np

from sublet.domain.plan import OfferState, Pool, Snapshot
from sublet.solve.arrays import Floats

__all__ = ["capacity_by_tick", "capacity_changes"]


def capacity_changes(pool: Pool, snapshot: Snapshot, gpus: int, most: int) -> list[tuple[float, int]]:
    """GPUs that the pool had for this job, from when on, `most` at most: what others have of it now is not counted.

    `gpus` is what it has for it now. An offer of which no end is seen has had as many as now.
    """
    states = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
    times = sorted({at_s for state in states for at_s, _ in state.capacity if at_s <= snapshot.now_s})
    if not times:
        return [(0.0, gpus)]
    total = [sum(_nodes_at(state, at_s) for state in states) * pool.gpus_per_node for at_s in times]
    falling = sum(nodes for state in states for _, nodes in state.falls) * pool.gpus_per_node
    others = max(0, total[-1] - falling - gpus) if gpus < most else 0
    found: list[tuple[float, int]] = []
    for at_s, many in zip(times, total, strict=True):
        left = min(most, max(0, many - others))
        if not found or found[-1][1] != left:
            found.append((at_s, left))
    return found


def _nodes_at(state: OfferState, at_s: float) -> int:
    nodes = next((nodes for since_s, nodes in reversed(state.capacity) if since_s <= at_s), 0)
    return state.held if nodes is None else nodes


def capacity_by_tick(changes: list[tuple[float, int]], gpus: int, now_s: float, step_s: float) -> Floats:
    """The capacity at every tick so far, and now."""
    at_s = np.array([at_s for at_s, _ in changes])
    many = np.array([many for _, many in changes], dtype=np.float64)
    first, last = math.ceil(at_s[0] / step_s), math.floor(now_s / step_s)
    when_s = np.arange(first, last + 1) * step_s
    if not len(when_s) or when_s[-1] != now_s:
        when_s = np.append(when_s, now_s)
    history = many[np.searchsorted(at_s, when_s, side="right") - 1]
    history[-1] = gpus  # less than that where a fall was announced
    return history
