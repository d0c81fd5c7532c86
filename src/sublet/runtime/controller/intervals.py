"""How often each tier of a live job is written: the model of tiers, with what was measured of the job and its nodes.

Workers write to their node's disk and agents carry every commit to the controller, or they write where all see it:
either way one interval, that of the worker, is for both. What the controller copies to a bucket no GPU waits for.
Survivors of an elastic job hold its state at every step, for nothing: it needs a checkpoint only where all nodes go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.offer import Market
from sublet.domain.plan import OfferState
from sublet.domain.saving import MOST_SLOWDOWN, cost_of_write
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import expected_hits_per_h
from sublet.perf.preemption.reclaims import USUAL_PER_H
from sublet.perf.preemption.tiers import Ladder, best_tiering

__all__ = ["Every", "Losses", "Pace", "intervals", "losses_of"]

FIRST_WRITE_S = 0.05  # until one was measured
FAILS_PER_H = 0.005  # all processes of a job die while their nodes live: about once a week
TOGETHER = 0.1  # of the losses of spot nodes take all of a job's: in records of them many go at once
BUSY = 0.1  # of the time, at most, the controller copies to a bucket
LONGEST_S = 600.0  # wall, between two checkpoints, if they cost next to nothing
DIGITS = 3  # of what is measured: nothing is computed anew for less


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the last copies took, wall; 0 = nothing was measured yet."""

    blocked_s: float = 0.0  # of training
    write_s: float = 0.0  # where the worker writes
    carry_s: float = 0.0  # from there to the controller
    copy_s: float = 0.0  # from the controller to a bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """How often per hour of the cloud a job loses what."""

    some_per_h: float  # nodes, of which others are left
    all_per_h: float  # nodes
    fails_per_h: float = FAILS_PER_H  # processes
    anchor_per_h: float = USUAL_PER_H[Market.ON_DEMAND]


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Wall seconds between two copies, and what of all time they cost training by the model."""

    worker_s: float  # disk and anchor
    bucket_s: float  # from the anchor; infinite = never
    slower: float


def losses_of(held: Sequence[tuple[OfferState, int]], *, survives: bool) -> Losses:
    """Of a job on so many nodes of each offer. `survives`: those that are left hold its state."""
    hits_per_h = sum(expected_hits_per_h(state, nodes) for state, nodes in held)
    if not survives or sum(nodes for _, nodes in held) <= 1:
        return Losses(some_per_h=0.0, all_per_h=hits_per_h)
    if any(state.offer.market is Market.ON_DEMAND for state, _ in held):
        return Losses(some_per_h=hits_per_h, all_per_h=USUAL_PER_H[Market.ON_DEMAND])
    together = [TOGETHER]
    if len(held) == 1:
        ((state, nodes),) = held
        together.append(state.offer.reclaim_share ** (nodes - 1))  # given that it takes one
    all_per_h = max(together) * hits_per_h
    return Losses(some_per_h=hits_per_h - all_per_h, all_per_h=all_per_h)


def intervals(pace: Pace, losses: Losses, *, speedup: float = 1.0, copies: bool = False) -> Every:
    """Wall seconds between two copies in each tier that slow training by at most 2 % and lose the least.

    `copies`: the controller copies to a bucket what it has. Cost: a few hundred small steps, once for equal questions.
    """
    rounded = Pace(**{name: _rounded(value) for name, value in asdict(pace).items()})
    return _intervals(rounded, losses, speedup, copies=copies)


@lru_cache(maxsize=1024)
def _intervals(pace: Pace, losses: Losses, speedup: float, *, copies: bool) -> Every:
    write_s = max(pace.write_s, FIRST_WRITE_S)
    near_s = cost_of_write(pace.blocked_s, write_s) + cost_of_write(0.0, pace.carry_s)
    near_per_h = losses.all_per_h + losses.fails_per_h
    ladder = Ladder(
        hits_per_s=np.array([[losses.some_per_h], [near_per_h], [losses.anchor_per_h if copies else 0.0]])
        * (speedup / SECONDS_PER_H),
        cost_s=np.array([[0.0], [near_s], [0.0]]),
        lag_s=np.array([[0.0], [write_s + pace.carry_s], [pace.copy_s]]),
        least_s=np.array([[0.0], [max(write_s, pace.carry_s)], [max(pace.copy_s, FIRST_WRITE_S) / BUSY]]),
    )
    found = best_tiering(ladder, most_slowdown=MOST_SLOWDOWN, skips=False)
    _, worker_s, bucket_s = found.every_s_KC[:, 0].tolist()
    worker_s = max(min(worker_s, LONGEST_S), near_s / MOST_SLOWDOWN)
    if math.isfinite(bucket_s):  # a multiple of what it is made of
        bucket_s = worker_s * max(1, round(bucket_s / worker_s))
    return Every(worker_s=worker_s, bucket_s=bucket_s, slower=near_s / worker_s)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
