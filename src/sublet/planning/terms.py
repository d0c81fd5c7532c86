"""The terms of one decision: the market, read once from a snapshot and handed to all that weigh it.

Row by row it says what a GPU costs, how much could be had, and what the cloud has refused. A row is what is rented
alike: a pool, or one of the markets of a pool that has both. Nothing that weighs shapes against each other looks at
offers, prices or limits itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from sublet.domain.offer import Market
from sublet.domain.plan import OfferState, Pool, Snapshot
from sublet.domain.shape import Shape
from sublet.perf.preemption import Reclaims, believe_reclaims
from sublet.planning.affordable import (
    Row,
    hold_rows,
    most_gpus,
    most_gpus_alone,
    most_gpus_beside,
    rows_by_market,
)
from sublet.solve.arrays import Bools, Floats

__all__ = ["Refusals", "Rents", "Site", "Sites", "SteadyPart", "Terms"]

# R rows


@dataclass(frozen=True, slots=True)
class SteadyPart:
    """The part on demand of a pool that has both markets."""

    boot_s: float
    spot_gpus: float  # of the other part: what could be had of it now


@dataclass(frozen=True, slots=True)
class Site:
    """A pool as one job sees it: equal ones offer equal choices.

    It is one row; with a steady part two, spot before on demand, and the other facts are of spot. What hardly tells
    two sites apart is not in their hash: menus are looked up by them, for every job in every decision.
    """

    pool: str
    gpu: str = field(hash=False)
    gpus_per_node: int = field(hash=False)
    reclaims: Reclaims
    boot_s: float = field(hash=False)
    most_gpus: float = field(hash=False)  # a quota
    steady: SteadyPart | None = None


Sites = tuple[Site, ...]
Rents = tuple[float, ...]  # USD per GPU-hour, by row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refusals:
    """Where the cloud refused what was asked for, and what there is without asking again."""

    refused_R: Bools  # whatever more could be asked for was refused when it was asked for last
    coming_R: Bools  # nodes are on their way
    free_R: Floats  # GPUs on nodes that are there, promised to nobody
    beside_R: Floats  # GPUs promised to nobody that could be held beside all that is held now


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """What can be had, and for how much, as it stands in one snapshot."""

    snapshot: Snapshot
    now_s: float
    sites: Sites
    rows: tuple[Row, ...]  # those of the sites, in their order
    rent_R: Rents  # the cheapest that can be had now; where nothing can, of what there would be. What is owned is free
    listed_R: Rents  # the cheapest by list of what limits let be held, whatever there is now
    on_demand_R: Rents  # by list; infinite where there is nothing on demand
    most: Mapping[str, float]  # GPUs that could be held in each pool, all at once (inf = no end)
    alone_R: Floats  # GPUs that could be held in each row if all money went to it
    limited: bool  # whether there is an end to what can be had of any row
    ever_R: Bools  # whether limits let anything of it be held at all; what is sold out now may be back
    refusals: Refusals | None  # None where nothing was refused, or all has been heard of since

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> Terms:
        """Read the market. Cost: O(offers), and `affordable` for each row."""
        pools = list(snapshot.pools.values())
        parts_P = [_by_market(pool, [snapshot.offers[offer_id] for offer_id in pool.offer_ids]) for pool in pools]
        pool_R = [pool for pool, parts in zip(pools, parts_P, strict=True) for _ in parts]
        rows = tuple(row for parts in parts_P for row, _ in parts)
        states_R = [states for parts in parts_P for _, states in parts]
        open_R = [[state for state in states if state.most > 0] or states for states in states_R]
        most = most_gpus(snapshot)
        alone = most if len(rows) == 1 else most_gpus_alone(snapshot, rows)
        alone_R = np.array([alone[row.name] for row in rows])
        return cls(
            snapshot=snapshot,
            now_s=snapshot.now_s,
            sites=tuple(_site(pool, parts, alone) for pool, parts in zip(pools, parts_P, strict=True)),
            rows=rows,
            rent_R=tuple(map(_rent_now, pool_R, open_R)),
            listed_R=tuple(map(_rent_by_list, pool_R, states_R)),
            on_demand_R=tuple(map(_rent_on_demand, pool_R, states_R)),
            most=most,
            alone_R=alone_R,
            limited=bool(np.isfinite(alone_R).any()),
            ever_R=np.array(
                [
                    pool.max_gpus != 0 and any(state.limit.max_nodes != 0 for state in states)
                    for pool, states in zip(pool_R, states_R, strict=True)
                ],
                dtype=np.bool_,
            ),
            refusals=_read_refusals(snapshot, rows, states_R),
        )

    @property
    def lasting(self) -> Sites:
        """The sites whatever spot has now: what the long run is thought to be like."""
        if len(self.rows) == len(self.sites):
            return self.sites
        return tuple(
            site if site.steady is None else replace(site, steady=replace(site.steady, spot_gpus=math.inf))
            for site in self.sites
        )

    def obtainable(self, wanted_R: Floats, first_R: Floats | None = None) -> Floats:
        """GPUs of each row that can be held together, if this many are wanted: money goes to one or to another.

        It goes to the cheapest, but to what is needed `first_R` before all; that is no more than can be held.
        """
        snapshot = self.snapshot
        if snapshot.budget.burn is None and snapshot.left is None and snapshot.most_nodes is None and not self._shares:
            return self.alone_R
        first = None if first_R is None else self._whole(first_R)
        wanted = self._whole(wanted_R if first_R is None else np.maximum(wanted_R, first_R))
        have = self._gpus_held(wanted, first)
        short = sum(max(0, wanted[row] - have[row]) for row in wanted)
        if short and len(wanted) > 1:  # what one row has not got another may have
            more = {row: have[row] if have[row] < gpus else gpus + short for row, gpus in wanted.items()}
            have = self._gpus_held(more, first)
        return np.array([have[row] for row in self.rows], dtype=np.float64)

    def holds(self, gpus_R: Floats) -> bool:
        """Whether so many GPUs of each row can be held together."""
        wanted = self._whole(gpus_R)
        have = self._gpus_held(wanted)
        return all(have[row] >= gpus for row, gpus in wanted.items())

    def rows_used(self, shape: Shape) -> list[int]:
        """Where its GPUs are, by what it asks for; none if there is no such pool any more."""
        at = [place for place, row in enumerate(self.rows) if row.pool == shape.pool]
        gpus = (shape.gpus - shape.steady, shape.steady) if len(at) > 1 else (shape.gpus,) * len(at)
        return [place for place, many in zip(at, gpus, strict=True) if many]

    def least(self, rent_R: Rents, site: int) -> float:
        """The lower rent of the rows of a site."""
        pool = self.sites[site].pool
        return min(rent for row, rent in zip(self.rows, rent_R, strict=True) if row.pool == pool)

    @property
    def _shares(self) -> bool:
        """Whether two rows share a quota."""
        return any(site.steady is not None and math.isfinite(site.most_gpus) for site in self.sites)

    def _whole(self, gpus_R: Floats) -> dict[Row, int]:
        return {row: math.ceil(gpus) for row, gpus in zip(self.rows, gpus_R, strict=True)}

    def _gpus_held(self, wanted: Mapping[Row, int], first: Mapping[Row, int] | None = None) -> dict[Row, int]:
        nodes, pools = hold_rows(self.snapshot, wanted, first), self.snapshot.pools
        return {
            row: sum(nodes[offer_id] for offer_id in row.offer_ids) * pools[row.pool].gpus_per_node for row in wanted
        }


# ---------------------------------------------------------------------- one pool, one row


def _by_market(pool: Pool, states: Sequence[OfferState]) -> list[tuple[Row, list[OfferState]]]:
    """Its rows: spot before on demand where there are both."""
    if not pool.is_mixed:
        return [(Row(pool.name, pool.name, pool.offer_ids), list(states))]
    return [
        (
            Row(f"{pool.name}:{market}", pool.name, pool.markets[market]),
            [state for state in states if state.offer.market is market],
        )
        for market in (Market.SPOT, Market.ON_DEMAND)
    ]


def _site(pool: Pool, parts: Sequence[tuple[Row, Sequence[OfferState]]], alone: Mapping[str, float]) -> Site:
    (row, states), *on_demand = parts
    steady = [SteadyPart(_least_boot_s(each), alone[row.name]) for _, each in on_demand]
    return _known_site(
        pool.name,
        pool.gpu,
        pool.gpus_per_node,
        believe_reclaims(states),
        _least_boot_s(states),
        math.inf if pool.max_gpus is None else pool.max_gpus,
        steady[0] if steady else None,
    )


_known_site = lru_cache(maxsize=4096)(Site)  # one object, so that menus are looked up by it without a second look


def _least_boot_s(states: Sequence[OfferState]) -> float:
    return min(state.offer.boot_s for state in states)


def _rent_now(pool: Pool, states: Sequence[OfferState]) -> float:
    return min(0.0 if _is_owned(state) else state.price.usd_per_h for state in states) / pool.gpus_per_node


def _rent_by_list(pool: Pool, states: Sequence[OfferState]) -> float:
    """What is sold out counts: the long run is not what there is now, nor what is held of it."""
    states = [state for state in states if state.limit.max_nodes != 0] or states
    return min(0.0 if _is_owned(state) else state.offer.price.usd_per_h for state in states) / pool.gpus_per_node


def _rent_on_demand(pool: Pool, states: Sequence[OfferState]) -> float:
    prices = [state.offer.price.usd_per_h for state in states if state.offer.market is Market.ON_DEMAND]
    return min(prices, default=math.inf) / pool.gpus_per_node


def _is_owned(state: OfferState) -> bool:
    """Paid for whether it is used or not."""
    return bool(state.limit.min_nodes) and state.limit.min_nodes == state.limit.max_nodes


# ---------------------------------------------------------------------- all rows


def _read_refusals(
    snapshot: Snapshot, rows: Sequence[Row], states_R: Sequence[Sequence[OfferState]]
) -> Refusals | None:
    if not any(state.refused for states in states_R for state in states):
        return None
    promised = rows_by_market(rows, snapshot.promised, snapshot.steady)
    promised_R = np.array([promised[row] for row in rows], dtype=np.float64)
    refused = [_is_refused(states) for states in states_R]
    beside = [most_gpus_beside(snapshot, row, rows) if no else np.inf for row, no in zip(rows, refused, strict=True)]
    ready = [
        sum(state.held - state.coming for state in states) * snapshot.pools[row.pool].gpus_per_node
        for row, states in zip(rows, states_R, strict=True)
    ]
    return Refusals(
        refused_R=np.array(refused, dtype=np.bool_),
        coming_R=np.array([any(state.coming for state in states) for states in states_R], dtype=np.bool_),
        free_R=np.array(ready, dtype=np.float64) - promised_R,
        beside_R=np.array(beside, dtype=np.float64) - promised_R,
    )


def _is_refused(states: Sequence[OfferState]) -> bool:
    askable = [state for state in states if state.most > state.held]
    return bool(askable) and all(state.refused for state in askable)
