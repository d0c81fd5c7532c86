"""The market of one decision, read once from a snapshot: what a GPU costs, what could be had, what the cloud refused.

A row is what is rented alike: a pool, or one of the markets of a pool that has both. Nothing that weighs shapes against
each other looks at offers, prices or limits itself. What is held for a need follows one order: what is owned, what is
there, then the cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import OfferState, Pool, Snapshot
from sublet.domain.shape import Shape
from sublet.perf.preemption import NO_RECLAIMS, Reclaims, believe_reclaims
from sublet.planning.choosy import kept_for_choosy
from sublet.solve.arrays import Bools, Floats

# R rows


class Row(NamedTuple):
    """The offers that are rented alike: those of a pool, or of one market of a pool with both."""

    name: str
    pool: str
    offer_ids: tuple[str, ...]


def rows_by_market(rows: Iterable[Row], gpus: Mapping[str, int], steady: Mapping[str, int]) -> dict[Row, int]:
    """GPUs of each row, by those of each pool; of a pool with two rows `steady` are of the second, on demand."""
    found: dict[Row, int] = {}
    first: dict[str, Row] = {}
    for row in rows:
        if row.pool in first:
            found[row] = steady.get(row.pool, 0)
            found[first[row.pool]] -= found[row]
        else:
            found[row] = gpus.get(row.pool, 0)
            first[row.pool] = row
    return found


def pool_rows(snapshot: Snapshot) -> list[Row]:
    """The pools, whatever their markets."""
    return [Row(name, name, pool.offer_ids) for name, pool in snapshot.pools.items()]


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
    free_R: Floats  # GPUs on nodes that are there, promised to no job
    beside_R: Floats  # GPUs promised to no job that could be held beside all that is held now


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """The market of one snapshot: what can be had, and for how much."""

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
        """Read the market. Cost: O(offers); where money or quotas tie rows to one another, that for each row."""
        offers = dict(snapshot.offers)
        listed = _listed(snapshot, offers)
        rows = listed.rows
        states_R = [[offers[offer_id] for offer_id in ids] for ids in listed.ids_R]
        most, alone = _most_together_and_alone(snapshot, rows)
        alone_R = np.array([alone[row.name] for row in rows])
        return cls(
            snapshot=snapshot,
            now_s=snapshot.now_s,
            sites=_sites(snapshot, listed, states_R, alone),
            rows=rows,
            rent_R=listed.rent_R,
            listed_R=listed.listed_R,
            on_demand_R=listed.on_demand_R,
            most=most,
            alone_R=alone_R,
            limited=bool(np.isfinite(alone_R).any()),
            ever_R=listed.ever_R,
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


# ---------------------------------------------------------------------- prices and sites, as long as they are the same


class _Listed(NamedTuple):
    """Facts that follow from offers, limits, prices and from whether there is any: most events change none."""

    key: tuple[Any, ...]
    rows: tuple[Row, ...]
    row_P: tuple[int, ...]  # the first of each pool
    ids_R: tuple[tuple[str, ...], ...]  # offers
    reclaimed_P: tuple[bool, ...]  # an offer on spot says that it is taken back
    rent_R: Rents
    listed_R: Rents
    on_demand_R: Rents
    ever_R: Bools


class _LastRead:
    """The last reading: mostly compared with the present by identity."""

    __slots__ = ("listed", "sites")

    def __init__(self) -> None:
        self.listed: _Listed | None = None
        self.sites: tuple[_Listed | None, tuple[Any, ...], Sites] = (None, (), ())


_last = _LastRead()


def _listed(snapshot: Snapshot, offers: Mapping[str, OfferState]) -> _Listed:
    key = (
        *snapshot.pools.values(),
        *[each for state in offers.values() for each in (state.offer, state.limit, state.price, state.most > 0)],
    )
    last = _last.listed
    if last is None or last.key != key:
        last = _last.listed = _read_listed(snapshot, offers, key)
    return last


def _read_listed(snapshot: Snapshot, offers: Mapping[str, OfferState], key: tuple[Any, ...]) -> _Listed:
    pools = list(snapshot.pools.values())
    parts_P = [_by_market(pool, [offers[offer_id] for offer_id in pool.offer_ids]) for pool in pools]
    pool_R = [pool for pool, parts in zip(pools, parts_P, strict=True) for _ in parts]
    states_R = [states for parts in parts_P for _, states in parts]
    open_R = [[state for state in states if state.most > 0] or states for states in states_R]
    ever = [
        pool.max_gpus != 0 and any(state.limit.max_nodes != 0 for state in states)
        for pool, states in zip(pool_R, states_R, strict=True)
    ]
    ever_R = np.array(ever, dtype=np.bool_)
    ever_R.setflags(write=False)
    return _Listed(
        key=key,
        rows=tuple(row for parts in parts_P for row, _ in parts),
        row_P=tuple(accumulate((len(parts) for parts in parts_P[:-1]), initial=0)),
        ids_R=tuple(tuple(state.offer.id for state in states) for states in states_R),
        reclaimed_P=tuple(
            any(state.offer.market is Market.SPOT and state.offer.hazard_per_h for state in parts[0][1])
            for parts in parts_P
        ),
        rent_R=tuple(map(_rent_now, pool_R, open_R)),
        listed_R=tuple(map(_rent_by_list, pool_R, states_R)),
        on_demand_R=tuple(map(_rent_on_demand, pool_R, states_R)),
        ever_R=ever_R,
    )


def _sites(
    snapshot: Snapshot, listed: _Listed, states_R: Sequence[Sequence[OfferState]], alone: Mapping[str, float]
) -> Sites:
    """Of all pools; the same object as long as nothing of them has changed."""
    believed = [
        believe_reclaims(states_R[row]) if reclaimed else NO_RECLAIMS
        for row, reclaimed in zip(listed.row_P, listed.reclaimed_P, strict=True)
    ]
    mixed = len(listed.row_P) < len(listed.rows)
    key = (*believed, *(alone.values() if mixed else ()))
    last, last_key, sites = _last.sites
    if last is not listed or last_key != key:
        pools, ends = snapshot.pools.values(), (*listed.row_P[1:], len(states_R))
        sites = tuple(
            _site(pool, listed.rows[row:end], states_R[row:end], reclaims, alone)
            for pool, row, end, reclaims in zip(pools, listed.row_P, ends, believed, strict=True)
        )
        _last.sites = (listed, key, sites)
    return sites


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


def _site(
    pool: Pool,
    rows: Sequence[Row],
    states_R: Sequence[Sequence[OfferState]],
    reclaims: Reclaims,
    alone: Mapping[str, float],
) -> Site:
    steady = None if len(rows) == 1 else SteadyPart(_least_boot_s(states_R[1]), alone[rows[0].name])
    quota = math.inf if pool.max_gpus is None else pool.max_gpus
    return _known_site(pool.name, pool.gpu, pool.gpus_per_node, reclaims, _least_boot_s(states_R[0]), quota, steady)


_known_site = lru_cache(maxsize=4096)(Site)  # one object, so that menus are looked up by it without a second look


def _least_boot_s(states: Sequence[OfferState]) -> float:
    return min(state.offer.boot_s for state in states)


def _rent_now(pool: Pool, states: Sequence[OfferState]) -> float:
    return min(0.0 if _is_owned(state) else state.price.usd_per_h for state in states) / pool.gpus_per_node


def _rent_by_list(pool: Pool, states: Sequence[OfferState]) -> float:
    """An offer that is sold out counts: the long run is not what there is now, nor what is held of it."""
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


# ---------------------------------------------------------------------- what can be held


def most_gpus(snapshot: Snapshot, *, nobody_yields: bool = False) -> dict[str, float]:
    """GPUs that could be held in each pool, all at once, within limits, supply and burn budget (inf = no end).

    Money goes to the cheapest pools, but for the least of jobs that may not run there: also if others must yield for
    that, or, where `nobody_yields`, as soon as there is money for a new node.
    """
    rows = pool_rows(snapshot)
    first = {} if _without_money(snapshot) or len(rows) == 1 else kept_for_choosy(snapshot)
    nodes = _acquire(snapshot, dict.fromkeys(rows, math.inf), first, held_first=nobody_yields)
    return _by_name(snapshot, rows, nodes)


def most_gpus_alone(snapshot: Snapshot, rows: Iterable[Row]) -> dict[str, float]:
    """GPUs that could be held in each row if all money went to it."""
    rows = list(rows)
    if _without_money(snapshot) and not _has_quotas(snapshot):
        most = {offer_id: state.most for offer_id, state in snapshot.offers.items()}
        return _by_name(snapshot, rows, most)
    found: dict[str, float] = {}
    for row in rows:
        nodes = _acquire(snapshot, {each: math.inf if each == row else 0.0 for each in rows})
        found |= _by_name(snapshot, [row], nodes)
    return found


def _most_together_and_alone(snapshot: Snapshot, rows: Sequence[Row]) -> tuple[dict[str, float], dict[str, float]]:
    """`most_gpus` by pool, `most_gpus_alone` by row: the same where neither money nor a quota ties them together."""
    if len(rows) == len(snapshot.pools) and _without_money(snapshot) and not _has_quotas(snapshot):
        alone = most_gpus_alone(snapshot, rows)
        return alone, alone
    most = most_gpus(snapshot)
    return most, most if len(rows) == 1 else most_gpus_alone(snapshot, rows)


def most_gpus_beside(snapshot: Snapshot, row: Row, rows: Iterable[Row]) -> float:
    """GPUs that could be held in a row beside all that is held elsewhere."""
    need = {
        each: math.inf if each == row else float(sum(snapshot.offers[o].held for o in each.offer_ids)) for each in rows
    }
    return _by_name(snapshot, [row], _acquire(snapshot, need))[row.name]


def nodes_to_hold(snapshot: Snapshot, gpus: Mapping[str, int]) -> dict[str, int]:
    """Nodes per offer that give every pool the GPUs it needs, as far as they can be had, whatever their market."""
    return hold_rows(snapshot, {row: gpus.get(row.name, 0) for row in pool_rows(snapshot)})


def hold_rows(snapshot: Snapshot, gpus: Mapping[Row, int], first: Mapping[Row, int] | None = None) -> dict[str, int]:
    """The same for every row; what of it is needed `first`, before all that is not owned.

    Precondition: each offer is in one of them.
    """
    need, early = (
        {row: math.ceil(many / snapshot.pools[row.pool].gpus_per_node) for row, many in each.items()}
        for each in (gpus, first or {})
    )
    nodes = _acquire(snapshot, need, {row.name: many for row, many in early.items()})
    return {offer_id: int(many) for offer_id, many in nodes.items()}


def _without_money(snapshot: Snapshot) -> bool:
    """No money, and no count of nodes, ties what is held of one offer to what is held of others."""
    return snapshot.budget.burn is None and snapshot.left is None and snapshot.most_nodes is None


def _has_quotas(snapshot: Snapshot) -> bool:
    return any(pool.max_gpus is not None or pool.max_of for pool in snapshot.pools.values())


def _by_name(snapshot: Snapshot, rows: Iterable[Row], nodes: Mapping[str, float]) -> dict[str, float]:
    """GPUs."""
    return {
        row.name: sum(nodes[offer_id] for offer_id in row.offer_ids) * snapshot.pools[row.pool].gpus_per_node
        for row in rows
    }


def _acquire(
    snapshot: Snapshot, need: Mapping[Row, float], first: Mapping[str, float] | None = None, *, held_first: bool = False
) -> dict[str, float]:
    """Owned nodes, then held ones, then new ones, the cheapest per GPU first, while the burn budget lasts.

    Of the need, what is needed `first` (by the names of rows) goes before all that is not owned, or `held_first` before
    all that is not held.
    """
    burn = snapshot.budget.burn
    if len(snapshot.offers) == 1 and snapshot.left is None:
        (state,) = snapshot.offers.values()
        (wanted,) = need.values()
        return {state.offer.id: _of_one_offer(state, snapshot.pools[state.offer.pool], wanted, burn)}
    offers = sorted(snapshot.offers.values(), key=_usd_per_gpu)
    if not first and _without_money(snapshot) and len(snapshot.pools) == len(offers):  # none ties one to another
        wants = {row.pool: wanted for row, wanted in need.items()}
        return {
            state.offer.id: _of_one_offer(state, snapshot.pools[state.offer.pool], wants[state.offer.pool], None)
            for state in offers
        }
    return _acquire_together(snapshot, offers, need, first, held_first=held_first)


def _acquire_together(
    snapshot: Snapshot,
    offers: Sequence[OfferState],
    need: Mapping[Row, float],
    first: Mapping[str, float] | None,
    *,
    held_first: bool,
) -> dict[str, float]:
    """The same where what one offer takes another lacks: money, a count of nodes or a quota."""
    burn = snapshot.budget.burn
    left = math.inf if burn is None else float(burn.micro_usd_per_h)
    purse = math.inf if snapshot.left is None else float(max(0, snapshot.left.grains))
    nodes = math.inf if snapshot.most_nodes is None else float(snapshot.most_nodes)
    taken: dict[str, float] = {}
    row_of = {offer_id: row.name for row in need for offer_id in row.offer_ids}
    missing = {row.name: wanted for row, wanted in need.items()}
    early = dict(first or {})
    quotas = _Quotas(snapshot.pools)
    for state in offers:  # what is owned is held, needed or not, as long as the budget pays for it
        reserve = state.offer.reserve.grains if math.isfinite(purse) else 0
        owned = min(state.limit.min_nodes, state.most, nodes, state.held + _quotient(purse, reserve))
        if math.isfinite(purse):
            purse -= max(0.0, owned - state.held) * reserve
        taken[state.offer.id] = owned
        missing[row_of[state.offer.id]] -= owned
        if row_of[state.offer.id] in early:
            early[row_of[state.offer.id]] -= owned
        quotas.take(state.offer, owned)
        paid = max(owned, min(state.limit.min_nodes, state.held))  # ours is paid for until it is taken
        left -= paid * state.price.micro_usd_per_h
        nodes -= owned
    kept, others = [(early, _held), (early, _obtainable)] if early else [], [(missing, _held), (missing, _obtainable)]
    rounds = [others[0], *kept, others[1]] if held_first else [*kept, *others]
    for lacks, most in rounds:
        for state in offers:
            offer, price, row = state.offer, state.price.micro_usd_per_h, row_of[state.offer.id]
            lack = lacks.get(row, 0.0)
            more = min(most(state) - taken[offer.id], lack, quotas.left(offer), _quotient(left, price), nodes)
            if most is _obtainable:  # a new node takes its reserve from the budget
                more = min(more, _quotient(purse, offer.reserve.grains))
            if more > 0:
                taken[offer.id] += more
                missing[row] -= more
                if row in early:
                    early[row] -= more
                quotas.take(offer, more)
                nodes -= more if math.isfinite(nodes) else 0
                if math.isfinite(left):
                    left -= more * price
                if most is _obtainable and math.isfinite(purse):
                    purse -= more * offer.reserve.grains
    return taken


def _of_one_offer(state: OfferState, pool: Pool, need: float, burn: Price | None) -> float:
    """The same for the case that most runs are: one offer, no total budget."""
    owned = min(state.limit.min_nodes, state.most)
    wanted = min(need, state.most)
    for _, quota in pool.quotas:
        wanted = min(wanted, quota // pool.gpus_per_node)
    if burn is not None:
        wanted = min(wanted, _quotient(burn.micro_usd_per_h, state.price.micro_usd_per_h))
    return max(owned, wanted)


def _quotient(money: float, price: int) -> float:
    """How many whole nodes it pays for."""
    return math.inf if not price or math.isinf(money) else max(0.0, money // price)


class _Quotas:
    """Nodes that are left of the quotas that an offer is under: of its pool, and of its market there."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._left: list[float] = []
        self._of: dict[str, list[int]] = {}
        for pool in pools.values():
            for offer_ids, gpus in pool.quotas:
                for offer_id in offer_ids:
                    self._of.setdefault(offer_id, []).append(len(self._left))
                self._left.append(gpus // pool.gpus_per_node)

    def left(self, offer: Offer) -> float:
        return min((self._left[at] for at in self._of.get(offer.id, ())), default=math.inf)

    def take(self, offer: Offer, nodes: float) -> None:
        for at in self._of.get(offer.id, ()):
            self._left[at] -= nodes


def _held(state: OfferState) -> float:
    return min(state.held, state.most)


def _obtainable(state: OfferState) -> float:
    return state.most


def _usd_per_gpu(state: OfferState) -> tuple[float, str]:
    return (state.price.micro_usd_per_h / state.offer.gpus_per_node, state.offer.id)
