"""The terms of one decision: the market, read once from a snapshot and handed to all that weigh it.

Pool by pool it says what a node is to a job, what a GPU costs, how much could be had, and what the
cloud has refused. Nothing that weighs shapes against each other looks at offers, prices or limits itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.offer import Market
from sublet.domain.plan import OfferState, Pool, Snapshot
from sublet.perf.preemption import Reclaims, believe_reclaims
from sublet.planning.affordable import most_gpus, most_gpus_alone, most_gpus_beside, nodes_to_hold
from sublet.solve.arrays import Bools, Floats

__all__ = ["Refusals", "Rents", "Site", "Sites", "Terms"]

# P pools


@dataclass(frozen=True, slots=True)
class Site:
    """A pool as one job sees it: equal ones offer equal choices."""

    pool: str
    gpu: str
    gpus_per_node: int
    reclaims: Reclaims
    boot_s: float
    most_gpus: float  # a quota


Sites = tuple[Site, ...]
Rents = tuple[float, ...]  # USD per GPU-hour, by pool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refusals:
    """Where the cloud refused what was asked for, and what there is without asking again."""

    place: Mapping[str, int]  # of each pool
    refused_P: Bools  # whatever more could be asked for was refused when it was asked for last
    coming_P: Bools  # nodes are on their way
    free_P: Floats  # GPUs on nodes that are there, promised to nobody
    beside_P: Floats  # GPUs promised to nobody that could be held beside all that is held now


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """What can be had, and for how much, as it stands in one snapshot."""

    snapshot: Snapshot
    now_s: float
    sites: Sites
    rent_P: Rents  # the cheapest that can be had now; where nothing can, of what there would be. What is owned is free
    listed_P: Rents  # the same by list prices
    on_demand_P: Rents  # by list; infinite where there is nothing on demand
    most: Mapping[str, float]  # GPUs that could be held in each pool, all at once (inf = no end)
    alone_P: Floats  # GPUs that could be held in each pool if all money went to it
    limited: bool  # whether there is an end to what can be had of any pool
    ever_P: Bools  # whether limits let anything of it be held at all; what is sold out now may be back
    refusals: Refusals | None  # None where nothing was refused, or all has been heard of since

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> Terms:
        """Read the market. Cost: O(offers), and `affordable` for each pool."""
        pools = list(snapshot.pools.values())
        states_P = [[snapshot.offers[offer_id] for offer_id in pool.offer_ids] for pool in pools]
        open_P = [[state for state in states if state.most > 0] or states for states in states_P]
        most = most_gpus(snapshot)
        alone = most if len(pools) == 1 else most_gpus_alone(snapshot)
        alone_P = np.array([alone[pool.name] for pool in pools])
        return cls(
            snapshot=snapshot,
            now_s=snapshot.now_s,
            sites=tuple(map(_site, pools, states_P)),
            rent_P=tuple(map(_rent_now, pools, open_P)),
            listed_P=tuple(map(_rent_by_list, pools, open_P)),
            on_demand_P=tuple(map(_rent_on_demand, pools, states_P)),
            most=most,
            alone_P=alone_P,
            limited=bool(np.isfinite(alone_P).any()),
            ever_P=np.array(
                [
                    pool.max_gpus != 0 and any(state.limit.max_nodes != 0 for state in states)
                    for pool, states in zip(pools, states_P, strict=True)
                ],
                dtype=np.bool_,
            ),
            refusals=_read_refusals(snapshot, pools, states_P),
        )

    def obtainable(self, wanted_P: Floats) -> Floats:
        """GPUs of each pool that can be held together, if this many are wanted: money goes to one or to another."""
        snapshot = self.snapshot
        if snapshot.budget.burn is None and snapshot.left is None and snapshot.most_nodes is None:
            return self.alone_P
        wanted = {site.pool: math.ceil(gpus) for site, gpus in zip(self.sites, wanted_P, strict=True)}
        have = self._gpus_held(wanted)
        short = sum(max(0, wanted[pool] - have[pool]) for pool in wanted)
        if short and len(wanted) > 1:  # what one pool has not got another may have
            more = {pool: have[pool] if have[pool] < gpus else gpus + short for pool, gpus in wanted.items()}
            have = self._gpus_held(more)
        return np.array([have[site.pool] for site in self.sites], dtype=np.float64)

    def _gpus_held(self, wanted: Mapping[str, int]) -> dict[str, int]:
        nodes, pools = nodes_to_hold(self.snapshot, wanted), self.snapshot.pools
        return {
            name: sum(nodes[offer_id] for offer_id in pools[name].offer_ids) * pools[name].gpus_per_node
            for name in wanted
        }


# ---------------------------------------------------------------------- one pool


def _site(pool: Pool, states: Sequence[OfferState]) -> Site:
    return Site(
        pool.name,
        pool.gpu,
        pool.gpus_per_node,
        believe_reclaims(states),
        min(state.offer.boot_s for state in states),
        math.inf if pool.max_gpus is None else pool.max_gpus,
    )


def _rent_now(pool: Pool, states: Sequence[OfferState]) -> float:
    return min(0.0 if _is_owned(state) else state.price.usd_per_h for state in states) / pool.gpus_per_node


def _rent_by_list(pool: Pool, states: Sequence[OfferState]) -> float:
    return min(0.0 if _is_owned(state) else state.offer.price.usd_per_h for state in states) / pool.gpus_per_node


def _rent_on_demand(pool: Pool, states: Sequence[OfferState]) -> float:
    prices = [state.offer.price.usd_per_h for state in states if state.offer.market is Market.ON_DEMAND]
    return min(prices, default=math.inf) / pool.gpus_per_node


def _is_owned(state: OfferState) -> bool:
    """Paid for whether it is used or not."""
    return bool(state.limit.min_nodes) and state.limit.min_nodes == state.limit.max_nodes


# ---------------------------------------------------------------------- all pools


def _read_refusals(
    snapshot: Snapshot, pools: Sequence[Pool], states_P: Sequence[Sequence[OfferState]]
) -> Refusals | None:
    if not any(state.refused for states in states_P for state in states):
        return None
    promised_P = np.array([snapshot.promised[pool.name] for pool in pools], dtype=np.float64)
    refused = [_is_refused(states) for states in states_P]
    beside = [most_gpus_beside(snapshot, p.name) if no else np.inf for p, no in zip(pools, refused, strict=True)]
    ready = [
        sum(state.held - state.coming for state in states) * pool.gpus_per_node
        for pool, states in zip(pools, states_P, strict=True)
    ]
    return Refusals(
        place={pool.name: at for at, pool in enumerate(pools)},
        refused_P=np.array(refused, dtype=np.bool_),
        coming_P=np.array([any(state.coming for state in states) for states in states_P], dtype=np.bool_),
        free_P=np.array(ready, dtype=np.float64) - promised_P,
        beside_P=np.array(beside, dtype=np.float64) - promised_P,
    )


def _is_refused(states: Sequence[OfferState]) -> bool:
    askable = [state for state in states if state.most > state.held]
    return bool(askable) and all(state.refused for state in askable)
