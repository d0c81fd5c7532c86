"""How many nodes could be held, and which to hold for a given need: what we have first, then the cheapest."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sublet.domain.money import Price
from sublet.domain.plan import OfferState, Pool, Snapshot

__all__ = ["most_gpus", "most_gpus_alone", "most_gpus_beside", "nodes_to_hold"]


def most_gpus(snapshot: Snapshot) -> dict[str, float]:
    """GPUs that could be held in each pool, all at once, within limits, supply and burn budget (inf = no end)."""
    nodes = _acquire(snapshot, dict.fromkeys(snapshot.pools, math.inf))
    return {
        name: sum(nodes[offer_id] for offer_id in pool.offer_ids) * pool.gpus_per_node
        for name, pool in snapshot.pools.items()
    }


def most_gpus_alone(snapshot: Snapshot) -> dict[str, float]:
    """GPUs that could be held in each pool if all money went to it."""
    pools = snapshot.pools
    if len(pools) == 1:
        return most_gpus(snapshot)
    found = {}
    for name, pool in pools.items():
        nodes = _acquire(snapshot, {each: math.inf if each == name else 0.0 for each in pools})
        found[name] = sum(nodes[offer_id] for offer_id in pool.offer_ids) * pool.gpus_per_node
    return found


def most_gpus_beside(snapshot: Snapshot, name: str) -> float:
    """GPUs that could be held in a pool beside all that is held elsewhere."""
    need = {
        each: math.inf if each == name else float(sum(snapshot.offers[o].held for o in pool.offer_ids))
        for each, pool in snapshot.pools.items()
    }
    nodes, pool = _acquire(snapshot, need), snapshot.pools[name]
    return sum(nodes[offer_id] for offer_id in pool.offer_ids) * pool.gpus_per_node


def nodes_to_hold(snapshot: Snapshot, gpus: Mapping[str, int]) -> dict[str, int]:
    """Nodes per offer that give every pool the GPUs it needs, as far as they can be had."""
    need = {name: math.ceil(gpus.get(name, 0) / pool.gpus_per_node) for name, pool in snapshot.pools.items()}
    return {offer_id: int(nodes) for offer_id, nodes in _acquire(snapshot, need).items()}


def _acquire(snapshot: Snapshot, need: Mapping[str, float]) -> dict[str, float]:
    """Owned nodes, then held ones, then new ones, the cheapest per GPU first, while the burn budget lasts."""
    burn = snapshot.budget.burn
    if len(snapshot.offers) == 1 and snapshot.left is None:
        (state,) = snapshot.offers.values()
        return {state.offer.id: _of_one_offer(state, snapshot.pools[state.offer.pool], need, burn)}
    offers = sorted(snapshot.offers.values(), key=_usd_per_gpu)
    left = math.inf if burn is None else float(burn.micro_usd_per_h)
    purse = math.inf if snapshot.left is None else float(max(0, snapshot.left.grains))
    nodes = math.inf if snapshot.most_nodes is None else float(snapshot.most_nodes)
    taken: dict[str, float] = {}
    missing = {name: min(nodes, _quota_nodes(snapshot.pools[name])) for name, nodes in need.items()}
    for state in offers:  # what is owned is held, needed or not, as long as the purse pays for it
        reserve = state.offer.reserve.grains
        owned = min(state.limit.min_nodes, state.most, nodes, state.held + _quotient(purse, reserve))
        if math.isfinite(purse):
            purse -= max(0.0, owned - state.held) * reserve
        taken[state.offer.id] = owned
        missing[state.offer.pool] -= owned
        paid = max(owned, min(state.limit.min_nodes, state.held))  # ours is paid for until it is taken
        left -= paid * state.price.micro_usd_per_h
        nodes -= owned
    for most in (_held, _obtainable):
        for state in offers:
            offer, price = state.offer, state.price.micro_usd_per_h
            more = min(most(state) - taken[offer.id], missing[offer.pool], _quotient(left, price), nodes)
            if most is _obtainable:  # a new node takes its reserve from the purse
                more = min(more, _quotient(purse, offer.reserve.grains))
            if more > 0:
                taken[offer.id] += more
                missing[offer.pool] -= more
                nodes -= more if math.isfinite(nodes) else 0
                if math.isfinite(left):
                    left -= more * price
                if most is _obtainable and math.isfinite(purse):
                    purse -= more * offer.reserve.grains
    return taken


def _of_one_offer(state: OfferState, pool: Pool, need: Mapping[str, float], burn: Price | None) -> float:
    """The same for the case that most runs are: one offer, no purse."""
    owned = min(state.limit.min_nodes, state.most)
    wanted = min(need[pool.name], state.most)
    if pool.max_gpus is not None:
        wanted = min(wanted, _quota_nodes(pool))
    if burn is not None:
        wanted = min(wanted, _quotient(burn.micro_usd_per_h, state.price.micro_usd_per_h))
    return max(owned, wanted)


def _quotient(money: float, price: int) -> float:
    """How many whole nodes it pays for."""
    return math.inf if not price or math.isinf(money) else max(0.0, money // price)


def _quota_nodes(pool: Pool) -> float:
    return math.inf if pool.max_gpus is None else pool.max_gpus // pool.gpus_per_node


def _held(state: OfferState) -> float:
    return min(state.held, state.most)


def _obtainable(state: OfferState) -> float:
    return state.most


def _usd_per_gpu(state: OfferState) -> tuple[float, str]:
    return (state.price.micro_usd_per_h / state.offer.gpus_per_node, state.offer.id)
