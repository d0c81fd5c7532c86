"""How much of its speed a job keeps on nodes that are taken back: the expected time of spot shapes.

A job of n nodes is hit L times per hour. Every hit costs a pause: g seconds until other nodes are there, as far as the
notice did not cover them, and the restart r; another hit meanwhile makes it begin anew. Work since the last checkpoint
is lost, unless a notice leaves the time to write one. Hits are a Poisson process, so that from one recovery to the next
everything starts afresh, and the mean work over the mean time of such a cycle is the speed, exactly:

    noticed          exp(-L (g + r))
    not noticed      exp(-L (g + r)) x L T / (exp(L (T + w)) - 1)      every T seconds a checkpoint that takes w

The second is the whole of Daly's model (2006), not its first order, which is 1 - w / T - L (T / 2 + g + r). A job that
can shrink goes on with its survivors while it waits, after one restart more; what they do meanwhile is their liveput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.plan import OfferState
from sublet.domain.quantity import at_least
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.perf.migration import checkpoint_every_s
from sublet.solve.arrays import Floats
from sublet.solve.expectation import Loss, expected_liveput

__all__ = ["NO_RECLAIMS", "Reclaims", "believed", "hits_per_h", "spot_speed", "survivors_share"]

TRUSTED_LOSSES = (
    3.0  # what is said of an offer weighs as much as so many losses seen: these tell a rate to a factor of 2
)
HALF_STEPS = 2.0  # per doubling: a belief that creeps must not call for new menus all the time
RARE = 1e-12  # a loss with this chance, or a hit in as many seconds, is left out: it would be one in 30,000 years

# C shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaims:
    """How the nodes of a pool are taken back, as one job sees it."""

    per_h: float = 0.0  # per node-hour
    share: float = 0.0  # of the nodes held, what one reclaim takes; 0 = one node at a time
    notice_s: float = 0.0
    boot_s: float = 0.0  # until a new node is there

    def __post_init__(self) -> None:
        at_least("per_h", self.per_h, 0.0)
        at_least("notice_s", self.notice_s, 0.0)
        at_least("boot_s", self.boot_s, 0.0)
        if not 0.0 <= self.share <= 1.0:
            raise InvalidValue("share", self.share, "between 0 and 1")


NO_RECLAIMS = Reclaims()


def believed(states: Sequence[OfferState]) -> Reclaims:
    """What is said of the offers of a pool, corrected by what was seen of them, and rounded.

    What is said comes from elsewhere: a record in which all that could be had was held. Who holds less loses less.
    Where nothing was seen, what is said is taken as it is; and so are offers that are said not to be reclaimed.
    """
    offers = [state.offer for state in states]
    if offers[0].market is not Market.SPOT or not any(offer.hazard_per_h for offer in offers):
        return NO_RECLAIMS
    said_per_h = sum(offer.hazard_per_h for offer in offers) / len(offers)
    lost, held_h = sum(state.lost for state in states), sum(state.held_h for state in states)
    return Reclaims(
        per_h=said_per_h * _rounded((TRUSTED_LOSSES + lost) / (TRUSTED_LOSSES + said_per_h * held_h)),
        share=sum(offer.reclaim_share for offer in offers) / len(offers),
        notice_s=min(offer.notice_s for offer in offers),
        boot_s=min(offer.boot_s for offer in offers),
    )


def hits_per_h(reclaims: Reclaims, nodes_C: npt.ArrayLike) -> Floats:
    """How often a job on so many nodes loses at least one.

    One at a time that is nodes x hazard. Where a reclaim takes each node with probability q, reclaims come hazard / q
    times per hour, and spare all n nodes with probability (1 - q)^n.

    >>> hits_per_h(Reclaims(per_h=0.5), [1, 8]).tolist()
    [0.5, 4.0]
    >>> hits_per_h(Reclaims(per_h=0.5, share=1.0), [1, 8]).tolist()  # all go at once
    [0.5, 0.5]
    """
    nodes_C = np.asarray(nodes_C, dtype=np.float64)
    q = reclaims.share
    if q == 0.0:
        return reclaims.per_h * nodes_C
    with np.errstate(divide="ignore"):
        return np.asarray(reclaims.per_h / q * -np.expm1(nodes_C * np.log1p(-q)))


def spot_speed(
    reclaims: Reclaims, job: Job, nodes_C: npt.ArrayLike, survivors_C: npt.ArrayLike | None = None
) -> Floats:
    """The part of its undisturbed speed that a job keeps on so many nodes; 1 without reclaims, 0 if it never ends.

    `survivors_C` is the part that the nodes which a hit leaves would make; without it the job waits for new ones.

    Precondition: hits are independent of one another, and a recovery is hit as often as the whole job. Cost: O(C).

    >>> from sublet.perf.speedup import Linear
    >>> job = Job(id="j", submit_s=0.0, work=1.0, speed=Linear(), restart_s=180.0)
    >>> spot_speed(Reclaims(per_h=0.5, notice_s=120.0), job, [1, 4]).round(4).tolist()  # exp(-0.025), exp(-0.1)
    [0.9753, 0.9048]
    """
    nodes_C = np.asarray(nodes_C, dtype=np.float64)
    if reclaims.per_h == 0.0:
        return np.ones(len(nodes_C))
    hits_C = hits_per_h(reclaims, nodes_C) / SECONDS_PER_H
    wait_s, pause_s = max(0.0, reclaims.boot_s - reclaims.notice_s), job.restart_s
    warned = 0.0 < reclaims.notice_s >= job.checkpoint_write_s
    every_C, write_s = np.zeros(len(nodes_C)), 0.0
    if not warned:
        every_C, write_s = _every_s(job, hits_C), job.checkpoint_write_s
    speed_C = np.exp(-hits_C * (wait_s + pause_s)) * _kept(hits_C, every_C, write_s)
    if survivors_C is not None and wait_s > pause_s:
        window_C = _window_s(hits_C, wait_s - pause_s, every_C, write_s)
        speed_C = speed_C + np.asarray(survivors_C) * hits_C * np.exp(-hits_C * pause_s) * window_C
    return speed_C


def survivors_share(reclaims: Reclaims, rate_by_wide: Sequence[float], deep: int = 1) -> float:
    """Of the speed of the widest grid, what is left after a hit, if its stages re-pair: liveput / throughput.

    `rate_by_wide` are the speeds of 1, 2 ... pipelines of `deep` nodes; how many nodes a hit takes is binomial, given
    that it takes one. Cost: that of `expected_liveput`, for every number of nodes that may be lost.

    >>> survivors_share(Reclaims(per_h=1.0), [1.0, 2.0, 3.0, 4.0])
    0.75
    >>> survivors_share(Reclaims(per_h=1.0), [1.0, 2.0], deep=3)
    0.5
    """
    wide = len(rate_by_wide)
    nodes, q = wide * deep, reclaims.share
    if not rate_by_wide[-1] > 0:
        return 0.0
    if q == 0.0:
        chances = [1.0]
    else:
        struck = -math.expm1(nodes * math.log1p(-q)) if q < 1.0 else 1.0
        chances = [math.comb(nodes, k) * q**k * (1.0 - q) ** (nodes - k) / struck for k in range(1, nodes + 1)]
    if deep == 1:
        left = sum(chance * rate_by_wide[wide - k - 1] for k, chance in enumerate(chances, 1) if k < wide)
    else:
        losses = [Loss(instances=nodes, lost=k, chance=min(1.0, p)) for k, p in enumerate(chances, 1) if p > RARE]
        left = float(expected_liveput([rate_by_wide], [deep], losses)[0])
    return left / rate_by_wide[-1]


# ---------------------------------------------------------------------- parts of a cycle


def _every_s(job: Job, hits_C: Floats) -> Floats:
    """Time trained between two checkpoints: after Young and Daly where writing takes time, else as the job has it."""
    if job.checkpoint_write_s == 0.0:
        return np.full(len(hits_C), job.checkpoint_every_s)
    every_s = {hits: checkpoint_every_s(job.checkpoint_write_s, hits * SECONDS_PER_H) for hits in set(hits_C.tolist())}
    return np.array([every_s[hits] for hits in hits_C.tolist()])


def _kept(hits_C: Floats, every_C: Floats, write_s: float) -> Floats:
    """Of the time that it trains at full width, what is in a checkpoint when the next hit comes; 1 where all is."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        kept_C = hits_C * every_C / np.expm1(hits_C * (every_C + write_s))
    kept_C = np.where(np.isfinite(kept_C), kept_C, 0.0)  # a job that never writes keeps nothing
    return np.where((every_C == 0.0) | (hits_C < RARE), 1.0, kept_C)


def _window_s(hits_C: Floats, window_s: float, every_C: Floats, write_s: float) -> Floats:
    """Mean time that survivors train and keep, of a window that ends with the next hit, or whole with the new nodes."""
    whole_C = np.exp(-hits_C * window_s)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cycle_C = every_C + write_s
        times_C = np.where(np.isfinite(cycle_C), np.floor(window_s / cycle_C), 0.0)
        once_C = np.exp(-hits_C * cycle_C)
        saved_C = once_C * (1.0 - once_C**times_C) / (1.0 - once_C) - times_C * whole_C
        kept_C = whole_C * (window_s - times_C * write_s) + np.where(times_C > 0, every_C * saved_C, 0.0)
    return np.where(every_C == 0.0, -np.expm1(-hits_C * window_s) / hits_C, kept_C)


def _rounded(factor: float) -> float:
    return float(2.0 ** (round(HALF_STEPS * math.log2(factor)) / HALF_STEPS))
