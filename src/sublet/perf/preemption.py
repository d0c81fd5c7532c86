"""The one model of reclaims: how much of its speed a job keeps on nodes that are taken back.

Whoever asks how long or how dear a spot shape is asks here: policies by what is believed of a pool (`spot_speed`), the
rental plan by what an offer states, the adviser by what traces say (`speed_kept`), `ps` and `--dry-run` for the draws
around the mean. Hazard is per node-hour everywhere; how often a job is hit follows from its nodes.

A job of n nodes is hit L times per hour. Every hit costs a pause: g seconds until other nodes are there, as far as the
notice did not cover them, and the restart r; another hit meanwhile makes it begin anew. Work since the last checkpoint
is lost, unless a notice leaves the time to write one. Hits are a Poisson process, so that from one recovery to the next
everything starts afresh, and the mean work over the mean time of such a cycle is the speed, exactly:

    noticed          exp(-L (g + r))
    not noticed      exp(-L (g + r)) x L T / (exp(L (T + w)) - 1)      every T seconds a checkpoint that takes w

The second is the whole of Daly's model (2006), not its first order, which is 1 - w / T - L (T / 2 + g + r). Where the
pool is sold out for s seconds after a hit, nothing trains and nothing can be lost meanwhile: the cycle is that much
longer, and the speed is divided by 1 + L s. A job that can shrink goes on with its survivors while it waits, after one
restart more; what they do meanwhile is their liveput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.domain.job import Job
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import OfferState
from sublet.domain.quantity import at_least
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats
from sublet.solve.expectation import Loss, expected_liveput

__all__ = [
    "NO_RECLAIMS",
    "Reclaims",
    "Recovery",
    "believe_reclaims",
    "checkpoint_interval_s",
    "expected_hits_per_h",
    "hit_cost_s",
    "hits_per_h",
    "missing_nodes",
    "read_reclaims",
    "speed_kept",
    "spot_speed",
    "survivors_share",
]

TRUSTED_LOSSES = (
    3.0  # what is said of an offer weighs as much as so many losses seen: these tell a rate to a factor of 2
)
HALF_STEPS = 2.0  # per doubling: a belief that creeps must not call for new menus all the time
USUAL_PER_H = {  # nodes lost per node-hour where nothing is said: rare is not never
    Market.SPOT: 0.1,  # half of the calmest trace that we have of nodes that were held (0.22 to 1.1): `sublet traces`
    Market.ON_DEMAND: 0.001,  # Llama 3's 419 interruptions in 54 days on 2,048 nodes are 0.00016; ours are not all new
}
RARE = 1e-12  # a loss with this chance, or a hit in as many seconds, is left out: it would be one in 30,000 years

# C shapes; what is said of them are numbers, or arrays that fit one another


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recovery:
    """What a hit costs a job."""

    every_s: npt.ArrayLike  # trained between two checkpoints; 0 = a notice leaves the time to write one
    write_s: npt.ArrayLike
    boot_s: npt.ArrayLike  # until new nodes are there, as far as no notice covered it
    restart_s: npt.ArrayLike  # until it trains again, the checkpoint read
    sold_out_s: npt.ArrayLike = 0.0  # before nodes can be had again at all, on average
    none_left: npt.ArrayLike = 0.0  # the chance that a hit leaves no survivors to go on with


def read_reclaims(offer: Offer, boot_s: float | None = None) -> Reclaims:
    """What an offer says of itself, with the boot of its nodes as it is known elsewhere."""
    if offer.market is not Market.SPOT or not offer.hazard_per_h:
        return NO_RECLAIMS
    return Reclaims(
        per_h=offer.hazard_per_h,
        share=offer.reclaim_share,
        notice_s=offer.notice_s,
        boot_s=offer.boot_s if boot_s is None else boot_s,
    )


def believe_reclaims(states: Sequence[OfferState]) -> Reclaims:
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
        per_h=said_per_h * _round_factor((TRUSTED_LOSSES + lost) / (TRUSTED_LOSSES + said_per_h * held_h)),
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


def expected_hits_per_h(state: OfferState, nodes: int) -> float:
    """How often a job on so many nodes of an offer is hit, by what is believed; where nothing is said, by its market.

    Plans take offers that are said not to be reclaimed at their word. Checkpoints are written all the same.
    """
    believed = believe_reclaims([state])
    if not believed.per_h:
        believed = Reclaims(per_h=state.offer.hazard_per_h or USUAL_PER_H[state.offer.market])
    return float(hits_per_h(believed, nodes))


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
    warned = 0.0 < reclaims.notice_s >= job.checkpoint_write_s
    every_C: npt.ArrayLike = 0.0
    if not warned:  # after Young and Daly where writing takes time, else as the job has it
        every_C = (
            checkpoint_interval_s(job.checkpoint_write_s, hits_C) if job.checkpoint_write_s else job.checkpoint_every_s
        )
    recovery = Recovery(
        every_s=every_C,
        write_s=0.0 if warned else job.checkpoint_write_s,
        boot_s=max(0.0, reclaims.boot_s - reclaims.notice_s),
        restart_s=job.restart_s,
    )
    return speed_kept(hits_C, recovery, survivors_C)


def speed_kept(hits_per_s_C: Floats, recovery: Recovery, survivors_C: npt.ArrayLike | None = None) -> Floats:
    """The part of its undisturbed speed that a job keeps if it is hit so often, and recovers like this.

    From one hit to the next it does (kept work) in (1 / L + sold out); with survivors the nodes that are left train
    meanwhile, until the others are there or the next hit comes, and only a hit that leaves none waits.

    Precondition: as for `spot_speed`. Cost: O(C).
    """
    hits_C = np.asarray(hits_per_s_C, dtype=np.float64)
    every_C, write_C, boot_C, pause_C, sold_out_C, none_left_C = (
        np.asarray(value, dtype=np.float64)
        for value in (
            recovery.every_s,
            recovery.write_s,
            recovery.boot_s,
            recovery.restart_s,
            recovery.sold_out_s,
            recovery.none_left,
        )
    )
    kept_C = _kept(hits_C, every_C, write_C)
    waits_C: Floats = np.exp(-hits_C * (boot_C + pause_C)) * kept_C
    if survivors_C is None:
        return waits_C / (1.0 + hits_C * sold_out_C)
    window_C = np.maximum(0.0, sold_out_C + boot_C - pause_C)
    on_C: Floats = np.exp(-hits_C * (sold_out_C + boot_C + pause_C)) * kept_C
    trained_C = _window_s(hits_C, window_C, every_C, write_C)
    on_C = on_C + np.asarray(survivors_C) * hits_C * np.exp(-hits_C * pause_C) * trained_C
    return (none_left_C * waits_C + (1.0 - none_left_C) * on_C) / (1.0 + none_left_C * hits_C * sold_out_C)


def hit_cost_s(
    hits_per_s_C: Floats, speed_C: Floats, every_s: npt.ArrayLike = 1.0, write_s: npt.ArrayLike = 0.0
) -> Floats:
    """What one hit costs on average, whatever it consists of: what is lost but not to writing, over how often.

    >>> hit_cost_s(np.array([1 / 3600]), np.array([0.9])).round(6).tolist()
    [360.0]
    """
    every_C, write_C = np.asarray(every_s, dtype=np.float64), np.asarray(write_s, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        writes_C = np.isfinite(every_C) & (every_C > 0.0)  # else only at a notice, or never
        undisturbed_C = np.where(writes_C, every_C / (every_C + write_C), 1.0)
        return np.where(hits_per_s_C < RARE, 0.0, np.maximum(0.0, undisturbed_C - speed_C) / hits_per_s_C)


def checkpoint_interval_s(write_s: npt.ArrayLike, hits_per_s_C: Floats) -> Floats:
    """Time trained between two checkpoints, after Young and Daly; infinite where nothing is ever lost.

    >>> checkpoint_interval_s(50.0, np.array([1 / 3600, 0.0])).round(6).tolist()
    [600.0, inf]
    """
    with np.errstate(divide="ignore"):
        # In hours and back, as rates are stated: plans do not change by a rounding error.
        return np.asarray(np.sqrt(2.0 * np.asarray(write_s) * SECONDS_PER_H / (hits_per_s_C * SECONDS_PER_H)))


def missing_nodes(hits_per_s_C: Floats, at_once_C: Floats, nodes_C: Floats, gone_s_C: Floats) -> Floats:
    """How many nodes are gone, on average while any is, if a hit takes `at_once_C` and these are back after `gone_s_C`.

    Nodes come and go as in a repair shop where all are repaired at once: each is away a share of the time, and with
    many hits within `gone_s_C` losses add up.

    >>> missing_nodes(np.array([1e-6, 1.0]), np.array(2.0), np.array(8.0), np.array(60.0)).round(2).tolist()
    [2.0, 7.5]
    """
    nodes_C = np.maximum(nodes_C, 1e-9)
    load_C = hits_per_s_C * at_once_C / nodes_C * gone_s_C
    away_C = load_C / (1.0 + load_C)
    with np.errstate(divide="ignore", invalid="ignore"):
        any_C = -np.expm1(-np.log1p(load_C) * nodes_C / at_once_C)
        missing_C = nodes_C * away_C / any_C
    return np.where(any_C > RARE, np.maximum(missing_C, at_once_C), at_once_C)


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


def _kept(hits_C: Floats, every_C: Floats, write_C: Floats) -> Floats:
    """Of the time that it trains at full width, what is in a checkpoint when the next hit comes; 1 where all is."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        kept_C = hits_C * every_C / np.expm1(hits_C * (every_C + write_C))
    kept_C = np.where(np.isfinite(kept_C), kept_C, 0.0)  # a job that never writes keeps nothing
    return np.where((every_C == 0.0) | (hits_C < RARE), 1.0, kept_C)


def _window_s(hits_C: Floats, window_C: Floats, every_C: Floats, write_C: Floats) -> Floats:
    """Mean time that survivors train and keep, of a window that ends with the next hit, or whole with the new nodes."""
    whole_C = np.exp(-hits_C * window_C)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cycle_C = every_C + write_C
        times_C = np.where(np.isfinite(cycle_C), np.floor(window_C / cycle_C), 0.0)
        once_C = np.exp(-hits_C * cycle_C)
        saved_C = once_C * (1.0 - once_C**times_C) / (1.0 - once_C) - times_C * whole_C
        kept_C = whole_C * (window_C - times_C * write_C) + np.where(times_C > 0, every_C * saved_C, 0.0)
    return np.where(every_C == 0.0, -np.expm1(-hits_C * window_C) / hits_C, kept_C)


def _round_factor(factor: float) -> float:
    return float(2.0 ** (round(HALF_STEPS * math.log2(factor)) / HALF_STEPS))
