"""Offers: which nodes can be rented, within which limits, at what price, and how many of them are there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sublet.domain.budget import Limit
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import OfferState, Pool
from sublet.kernel.cluster import Cluster
from sublet.kernel.ledger import Ledger
from sublet.kernel.listing import Listing, listing_from, quotas_from, refuse_other_machines
from sublet.kernel.market_memory import Exposure, MarketMemory
from sublet.kernel.total import TotalBudget
from sublet.kernel.values_json import from_plain, to_plain

T = TypeVar("T")
REFUSED_AGAIN_S = 60.0  # after a refusal, the offer counts as sold out for this long (unless the market says otherwise)
REFUSED_AT_MOST_S = 960.0  # twice as long after each further one in a row, up to this: no longer than it has lasted yet


class Offering:
    """Offers and limits by offer id, pools by name; the mappings stay the same objects when what is in them changes."""

    def __init__(self, listing: Listing, cluster: Cluster, ledger: Ledger, purse: TotalBudget) -> None:
        self.offers, self.limits, self.pools = listing.offers, listing.limits, listing.pools
        self.every = dict(self.offers)  # known now or once: what was rented has a bill
        self.withdrawn: dict[str, None] = {}  # not offered any more, but held: no more than that can be had
        self.exposure = Exposure(self.offers.values())
        self.memory = MarketMemory()
        self._available: dict[str, int | None] = dict.fromkeys(self.offers, None)
        self._sold_out: dict[str, int] = {}  # offer -> nodes that were ours when the cloud refused more
        self._refused: dict[str, int] = {}  # offer -> times in a row that it was asked for more in vain
        self._cluster, self._ledger, self._purse = cluster, ledger, purse

    # ------------------------------------------------------------------ what can be had

    def state(self, offer_id: str, now_s: float | None = None) -> OfferState:
        """The offer as a policy sees it; with a time, with what was seen of its reclaims."""
        lost, held_h = (0.0, 0.0) if now_s is None else self.exposure.seen(offer_id, now_s)
        return OfferState(
            offer=self.offers[offer_id],
            price=self._ledger.believed(offer_id),
            limit=self.limits[offer_id],
            held=self._cluster.held[offer_id],
            available=self._obtainable(offer_id),
            lost=lost,
            held_h=held_h,
            coming=len(self._cluster.requested[offer_id]),
            refused=self._refused.get(offer_id, 0),
            capacity=self.memory.capacity.get(offer_id, ()),
            prices=self.memory.prices.get(offer_id, ()),
            falls=self.memory.falls(offer_id),
        )

    def most(self, offer_id: str) -> float:
        """`state(offer_id).most`, without the rest of it: asked at every plan."""
        limit, available = self.limits[offer_id].max_nodes, self._obtainable(offer_id)
        if available is None:
            return math.inf if limit is None else limit
        return available if limit is None else min(limit, available)

    def most_gpus(self, pool: Pool) -> float:
        """GPUs that could be held in a pool, money aside."""
        most = sum(self.most_of(pool, market) for market in pool.markets)
        return most if pool.max_gpus is None else min(most, pool.max_gpus)

    def most_of(self, pool: Pool, market: Market) -> float:
        """GPUs of one market that could be held in a pool, money aside."""
        most = sum(self.most(offer_id) for offer_id in pool.markets.get(market, ())) * pool.gpus_per_node
        quotas = (quota for quota in (pool.max_gpus, pool.max_of.get(market)) if quota is not None)
        return min(most, *quotas, math.inf)

    def obtained(self, offer_id: str, nodes: int) -> int:
        """How many of these nodes can be held."""
        return int(min(nodes, self.most(offer_id)))

    def _obtainable(self, offer_id: str) -> int | None:
        if self._purse.broke or self._ledger.believed(offer_id) > self.offers[offer_id].dearest:
            return 0
        available = self._available[offer_id]
        bounds = [] if available is None else [max(0, available - self.memory.falling(offer_id))]
        if offer_id in self.withdrawn:
            bounds.append(self._cluster.held[offer_id])
        if offer_id in self._sold_out:  # those that are leaving still count for the cloud
            bounds.append(max(0, self._sold_out[offer_id] - self._cluster.leaving[offer_id]))
        return min(bounds) if bounds else None

    # ------------------------------------------------------------------ what the market says

    def restock(self, offer_id: str, nodes: int | None, now_s: float) -> None:
        """It has another number of nodes."""
        self._available[offer_id] = nodes
        self.memory.stock(offer_id, nodes, now_s)
        self._refused.pop(offer_id, None)
        self.retry(offer_id)

    def retry(self, offer_id: str) -> None:
        """Forget that it is sold out."""
        self._sold_out.pop(offer_id, None)

    def refuse(self, offer_id: str) -> float:
        """The cloud has no more than we have: it counts as sold out, for the seconds that are given back."""
        if offer_id not in self._sold_out or offer_id not in self._refused:  # else another node of the same request
            self._refused[offer_id] = self._refused.get(offer_id, 0) + 1
        self._sold_out[offer_id] = self._cluster.held[offer_id] + self._cluster.leaving[offer_id]
        return min(REFUSED_AGAIN_S * 2.0 ** (self._refused[offer_id] - 1), REFUSED_AT_MOST_S)

    def deliver(self, offer_id: str) -> None:
        """A node came: the next refusal is the first in a row."""
        self._refused.pop(offer_id, None)

    def take_back(self, offer_id: str) -> None:
        """The cloud took a node: a sold-out offer has one less for us."""
        if offer_id in self._sold_out:
            self._sold_out[offer_id] = max(0, self._sold_out[offer_id] - 1)

    def wake_for_fall(self) -> float | None:
        """When an announced fall that makes less to be had is due, to be woken then; None = it is known, or none is."""
        return self.memory.wake(lambda offer_id: self._available.get(offer_id) is not None)

    def is_sold_out(self, offer_id: str) -> bool:
        """More of it was refused, not long ago."""
        return offer_id in self._sold_out

    # ------------------------------------------------------------------ another list

    def listing(self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int]) -> Listing:
        """These, and those of which nodes are held: what `change` would bring; InvalidValue where it cannot be."""
        named = {offer.id: offer for offer in offers}
        refuse_other_machines(self._cluster.nodes.values(), named)
        held = {node.offer.id: node.offer for node in self._cluster.nodes.values()}
        return listing_from([*offers, *(offer for o, offer in held.items() if o not in named)], limits, quotas)

    def change(
        self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int], now_s: float
    ) -> None:
        """The list, the limits or the quotas are other ones."""
        listing = self.listing(offers, limits, quotas)
        self.withdrawn = dict.fromkeys(listing.offers.keys() - {offer.id for offer in offers})
        for offer in offers:
            old = self.every.get(offer.id)
            self._ledger.offer(offer, now_s)
            if old is not None and old.price != offer.price:  # else the market's own price stands
                self._ledger.reprice(offer.id, offer.price, now_s)
        _refill(self.offers, listing.offers)
        _refill(self.limits, listing.limits)
        _refill(self.pools, listing.pools)
        self.every |= listing.offers
        self._available = {offer_id: self._available.get(offer_id) for offer_id in self.offers}
        self._sold_out = {offer_id: n for offer_id, n in self._sold_out.items() if offer_id in self.offers}
        self._refused = {offer_id: n for offer_id, n in self._refused.items() if offer_id in self.offers}
        self.exposure.watch(self.offers.values(), now_s)
        self.memory.keep_to(self.offers)
        self._cluster.reoffer(self.offers)

    def was_offered(self, pool: str) -> bool:
        """A pool that was there once, and is not now."""
        return pool not in self.pools and any(offer.pool == pool for offer in self.every.values())

    def retire(self) -> list[str]:
        """Forget withdrawn offers of which the last node has gone; these."""
        gone = [o for o in self.withdrawn if not self._cluster.held[o] and not self._cluster.leaving[o]]
        for offer_id in gone:
            del self.withdrawn[offer_id], self.offers[offer_id], self.limits[offer_id], self._available[offer_id]
            self._sold_out.pop(offer_id, None)
            self._refused.pop(offer_id, None)
        if gone:
            self.memory.keep_to(self.offers)
            quotas = quotas_from(self.pools, self.offers.values())
            _refill(self.pools, listing_from(list(self.offers.values()), self.limits, quotas).pools)
        return gone

    def doubt(self, offer_id: str, price: Price, now_s: float) -> None:
        """The market may have set another price: it is charged at once, up to what the cloud may charge at most."""
        self._ledger.doubt(offer_id, min(price, self.offers[offer_id].dearest), now_s)

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "offers": to_plain(list(self.offers.values())),
            "limits": to_plain(self.limits),
            "quotas": quotas_from(self.pools, self.offers.values()),
            "withdrawn": list(self.withdrawn),
            "former": to_plain([offer for offer_id, offer in self.every.items() if offer_id not in self.offers]),
            "available": dict(self._available),
            "sold_out": dict(self._sold_out),
            "refused": dict(self._refused),
            "exposure": self.exposure.facts(),
            "memory": self.memory.facts(),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there; made with the offers, limits and quotas of these facts."""
        self.withdrawn = dict.fromkeys(facts["withdrawn"])
        former = [from_plain(Offer, offer) for offer in facts["former"]]
        self.every = {offer.id: offer for offer in (*former, *self.offers.values())}
        self._available, self._sold_out = dict(facts["available"]), dict(facts["sold_out"])
        self._refused = dict(facts.get("refused", {}))  # not in snapshots of version 1, which are followed from there
        self.exposure.restore(facts["exposure"])
        if "memory" in facts:  # not in snapshots before version 8
            self.memory.restore(facts["memory"])


def _refill(old: dict[str, T], new: Mapping[str, T]) -> None:
    """The same mapping, for all that look at it, with other things in it."""
    old.clear()
    old |= new
