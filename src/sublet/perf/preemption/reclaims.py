"""How nodes are taken back: what an offer says, what is believed after some were seen, how often a job is hit.

Hazard is per node-hour everywhere; how often a job is hit follows from its nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.domain.offer import Market, Offer
from sublet.domain.plan import OfferState
from sublet.domain.quantity import at_least
from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats

TRUSTED_LOSSES = (
    3.0  # what is said of an offer weighs as much as so many losses seen: these tell a rate to a factor of 2
)
HALF_STEPS = 2.0  # per doubling: a belief that creeps must not call for new menus all the time
USUAL_PER_H = {  # nodes lost per node-hour where nothing is said: rare is not never
    Market.SPOT: 0.1,  # half of the calmest trace that we have of nodes that were held (0.22 to 1.1): `sublet traces`
    Market.ON_DEMAND: 0.001,  # Llama 3's 419 interruptions in 54 days on 2,048 nodes are 0.00016; ours are not all new
}

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


def read_reclaims(offer: Offer, boot_s: float | None = None) -> Reclaims:
    """An offer's own facts, with the boot of its nodes as it is known elsewhere."""
    if offer.market is not Market.SPOT or not offer.hazard_per_h:
        return NO_RECLAIMS
    return Reclaims(
        per_h=offer.hazard_per_h,
        share=offer.reclaim_share,
        notice_s=offer.notice_s,
        boot_s=offer.boot_s if boot_s is None else boot_s,
    )


def believe_reclaims(states: Sequence[OfferState]) -> Reclaims:
    """The stated rates of the spot offers of a pool, corrected by what was seen of them, and rounded.

    The stated rates come from elsewhere: a record in which all that could be had was held. A smaller holder loses less.
    If nothing was seen, what is said is taken as it is; and so are offers that are said not to be reclaimed. Those on
    demand are: in a pool of both markets this is what befalls the nodes on spot.
    """
    states = [state for state in states if state.offer.market is Market.SPOT]
    offers = [state.offer for state in states]
    if not any(offer.hazard_per_h for offer in offers):
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

    One at a time that is nodes x hazard. If a reclaim takes each node with probability q, reclaims come hazard / q
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
    with np.errstate(divide="ignore", invalid="ignore"):
        hits_C = reclaims.per_h / q * -np.expm1(nodes_C * np.log1p(-q))
    return np.where(nodes_C > 0.0, hits_C, 0.0)


def expected_hits_per_h(state: OfferState, nodes: int) -> float:
    """How often a job on so many nodes of an offer is hit, by what is believed; where nothing is said, by its market.

    Plans take offers that are said not to be reclaimed at their word. Checkpoints are written all the same.
    """
    believed = believe_reclaims([state])
    if not believed.per_h:
        believed = Reclaims(per_h=state.offer.hazard_per_h or USUAL_PER_H[state.offer.market])
    return float(hits_per_h(believed, nodes))


def _round_factor(factor: float) -> float:
    return float(2.0 ** (round(HALF_STEPS * math.log2(factor)) / HALF_STEPS))
