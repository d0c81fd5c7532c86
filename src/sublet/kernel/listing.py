"""Offers and limits: checked as a whole before any of it counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.domain.budget import Limit
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Pool
from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.kernel.cluster import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Offers and limits by offer id, pools by name."""

    offers: dict[str, Offer]
    limits: dict[str, Limit]
    pools: dict[str, Pool]


def listing_from(offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int]) -> Listing:
    """These offers; InvalidValue where they contradict one another or their limits."""
    if not offers:
        raise InvalidValue("offers", offers, "at least one offer")
    by_id = {offer.id: offer for offer in offers}
    if len(by_id) < len(offers):
        raise InvalidValue("offers", [offer.id for offer in offers], "of different ids")
    unknown = sorted(set(limits) - set(by_id))
    if unknown:
        raise InvalidValue("limits", unknown[0], "an offer that is there: " + ", ".join(by_id))
    all_limits = {offer.id: limits.get(offer.id, Limit()) for offer in offers}
    pools = _pools_from_offers(offers)
    for key, gpus in quotas.items():
        name, market = _pool_and_market(key, pools)
        pool = pools[name]
        whole(f"quotas[{key}]", gpus)
        offer_ids = pool.offer_ids if market is None else pool.markets[market]
        owned = sum(all_limits[o].min_nodes for o in offer_ids) * pool.gpus_per_node
        if gpus < owned:
            raise InvalidValue(f"quotas[{key}]", gpus, f"at least the {owned} GPUs that are owned")
        if market is None:
            pools[name] = replace(pool, max_gpus=gpus)
        else:
            pools[name] = replace(pool, max_of={**pool.max_of, market: gpus})
    return Listing(offers=by_id, limits=all_limits, pools=pools)


def _pool_and_market(key: str, pools: Mapping[str, Pool]) -> tuple[str, Market | None]:
    """The subject of a quota: a pool, or a pool's nodes of one market, as in `p:spot`."""
    name, _, market = key.rpartition(":")
    if key in pools:
        return key, None
    if name in pools and market in pools[name].markets:
        return name, Market(market)
    raise InvalidValue("quotas", key, "a pool that is there, with or without `:` and a market: " + ", ".join(pools))


def refuse_other_machines(nodes: Iterable[Node], offers: Mapping[str, Offer]) -> None:
    """The machine of a held node cannot change under it: its price may, and what is known of its market."""
    for node in nodes:
        new = offers.get(node.offer.id, node.offer)
        for name in ("gpu", "gpus_per_node", "market", "pool"):
            was, is_now = getattr(node.offer, name), getattr(new, name)
            if was != is_now:
                raise InvalidValue(f"{name} of offer {new.id}", is_now, f"{was}, as long as node {node.id} is held")


def _pools_from_offers(offers: Sequence[Offer]) -> dict[str, Pool]:
    pools: dict[str, Pool] = {}
    for offer in offers:
        pool = pools.get(offer.pool)
        if pool is None:
            pools[offer.pool] = Pool(
                name=offer.pool,
                gpu=offer.gpu,
                gpus_per_node=offer.gpus_per_node,
                offer_ids=(offer.id,),
                markets={offer.market: (offer.id,)},
            )
        elif (pool.gpu, pool.gpus_per_node) != (offer.gpu, offer.gpus_per_node):
            kinds = f"{pool.gpu} x {pool.gpus_per_node} like the others of pool {offer.pool}"
            raise InvalidValue(f"offer {offer.id}", f"{offer.gpu} x {offer.gpus_per_node}", kinds)
        else:
            markets = {**pool.markets, offer.market: (*pool.markets.get(offer.market, ()), offer.id)}
            pools[offer.pool] = replace(pool, offer_ids=(*pool.offer_ids, offer.id), markets=markets)
    return pools


def quotas_from(pools: Mapping[str, Pool], offers: Iterable[Offer]) -> dict[str, int]:
    """The quotas of the pools, and of their markets, that these offers are of."""
    offered = {(offer.pool, offer.market): None for offer in offers}
    named = {pool for pool, _ in offered}
    quotas = {p.name: p.max_gpus for p in pools.values() if p.max_gpus is not None and p.name in named}
    for pool, market in offered:
        if pool in pools and market in pools[pool].max_of:
            quotas[f"{pool}:{market}"] = pools[pool].max_of[market]
    return quotas


def hold_within(hold: Mapping[str, int], limits: Mapping[str, Limit], pools: Mapping[str, Pool]) -> dict[str, int]:
    """The wanted nodes that limits and quotas allow; what is owned in any case."""
    kept = {}
    for offer_id, limit in limits.items():
        wanted = hold.get(offer_id, 0)
        kept[offer_id] = max(limit.min_nodes, wanted if limit.max_nodes is None else min(wanted, limit.max_nodes))
    sized = ((pool.gpus_per_node, quota) for pool in pools.values() for quota in pool.quotas)
    for size, (offer_ids, most) in sized:
        for offer_id in reversed(offer_ids):
            gpus = sum(kept[each] for each in offer_ids) * size
            over = -(-(gpus - most) // size)
            if over > 0:
                kept[offer_id] = max(limits[offer_id].min_nodes, kept[offer_id] - over)
    return kept
