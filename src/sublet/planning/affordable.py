"""How many nodes could be held, and which to hold for a given need: what we have first, then the cheapest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sublet.domain.money import Price
from sublet.domain.offer import Offer
from sublet.domain.plan import OfferState, Pool, Snapshot
from sublet.planning.choosy import kept_for_choosy

__all__ = [
    "Row",
    "hold_rows",
    "most_gpus",
    "most_gpus_alone",
    "most_gpus_beside",
    "nodes_to_hold",
    "pool_rows",
    "rows_by_market",
]


class Row(NamedTuple):
    """What is rented alike: the offers of a pool, or of a pool with both markets those of one."""

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
    if _without_money(snapshot) and not any(pool.quotas for pool in snapshot.pools.values()):
        most = {offer_id: state.most for offer_id, state in snapshot.offers.items()}
        return _by_name(snapshot, rows, most)
    found: dict[str, float] = {}
    for row in rows:
        nodes = _acquire(snapshot, {each: math.inf if each == row else 0.0 for each in rows})
        found |= _by_name(snapshot, [row], nodes)
    return found


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
    for state in offers:  # what is owned is held, needed or not, as long as the purse pays for it
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
            if most is _obtainable:  # a new node takes its reserve from the purse
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
    """The same for the case that most runs are: one offer, no purse."""
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
