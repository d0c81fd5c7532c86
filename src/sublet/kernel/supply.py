"""The renting half of the kernel: what is on offer, what is held and paid for, and what to rent or give back next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.domain.actions import Action, ReleaseNode, RentNode, SetTimer
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import NodeLost, NodeReleased
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.offer import Offer
from sublet.domain.plan import OfferState, Pool
from sublet.domain.timers import RetryOffer
from sublet.kernel.cluster import Cluster, Node, NodePhase
from sublet.kernel.exposure import Exposure
from sublet.kernel.ledger import Ledger
from sublet.kernel.listing import Listing, listing_from, refuse_other_machines
from sublet.kernel.values_json import plain, restored

__all__ = ["Supply"]

REFUSED_AGAIN_S = 60.0  # after a refusal, the offer counts as sold out for this long (unless the market says otherwise)
REFUSED_AT_MOST_S = 960.0  # twice as long after each further one in a row, up to this: no longer than it has lasted yet


class Supply:
    """Nodes wanted (`hold`) against nodes held; `adjust` orders the difference, within limits and budget."""

    def __init__(
        self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int], budget: Budget
    ) -> None:
        listing = listing_from(offers, limits, quotas)
        self.offers, self.limits, self.pools = listing.offers, listing.limits, listing.pools
        self.every = dict(self.offers)  # known now or once: what was rented has a bill
        self.withdrawn: dict[str, None] = {}  # not offered any more, but held: no more than that can be had
        self.budget = budget
        self.cluster = Cluster()
        self.ledger = Ledger(offers)
        self.hold = {offer_id: limit.min_nodes for offer_id, limit in self.limits.items()}
        self.exposure = Exposure(offers)
        self.changed = True  # `adjust` has something to look at
        self._available: dict[str, int | None] = dict.fromkeys(self.offers, None)
        self._sold_out: dict[str, int] = {}  # offer -> nodes that were ours when the cloud refused more
        self._refused: dict[str, int] = {}  # offer -> times in a row that it was asked for more in vain
        self._rented = 0
        self.short = False  # the last `adjust` could not rent all that is wanted, for want of money in the purse
        self.to_clear: list[Node] = []  # nodes in use that must go, as of the last `adjust`
        self.most_nodes: int | None = None  # the purse runs out: no more than this from now on; 0 = it is spent

    def state(self, offer_id: str, now_s: float | None = None) -> OfferState:
        """The offer as a policy sees it; with a time, with what was seen of its reclaims."""
        lost, held_h = (0.0, 0.0) if now_s is None else self.exposure.seen(offer_id, now_s)
        return OfferState(
            offer=self.offers[offer_id],
            price=self.ledger.price(offer_id),
            limit=self.limits[offer_id],
            held=self.cluster.held[offer_id],
            available=self._obtainable(offer_id),
            lost=lost,
            held_h=held_h,
            coming=len(self.cluster.requested[offer_id]),
            refused=self._refused.get(offer_id, 0),
        )

    def most_gpus(self, pool: Pool) -> float:
        """GPUs that could be held in a pool, money aside."""
        most = sum(self.state(offer_id).most for offer_id in pool.offer_ids) * pool.gpus_per_node
        return most if pool.max_gpus is None else min(most, pool.max_gpus)

    def coming(self, pool: Pool) -> bool:
        """Whether nodes of a pool are on their way, or will be asked for."""
        held = self.cluster.held
        return any(self.cluster.requested[o] or held[o] < self._obtained(o, self.hold[o]) for o in pool.offer_ids)

    def wish(self, hold: Mapping[str, int]) -> None:
        """What a plan wants held."""
        self.hold = self.hold_after(hold)
        self.changed = True

    def hold_after(self, hold: Mapping[str, int]) -> dict[str, int]:
        """What would be wanted after this wish: owned nodes whatever it says, and nothing that is not offered now."""
        limits = self.limits
        return self.hold | {o: max(nodes, limits[o].min_nodes) for o, nodes in hold.items() if o in limits}

    def wished_burn(self, hold: Mapping[str, int]) -> Price:
        """What an hour costs, at today's prices, when all of `hold` is held, as far as it can be had."""
        prices = ((self._obtained(o, nodes), self.ledger.price(o)) for o, nodes in hold.items())
        return Price(sum(nodes * price.micro_usd_per_h for nodes, price in prices))

    def owned_burn(self) -> Price:
        """What an hour of the owned nodes costs, which no plan can save."""
        return Price(sum(limit.min_nodes * self.ledger.price(o).micro_usd_per_h for o, limit in self.limits.items()))

    def wished_gpus(self, pool: Pool, hold: Mapping[str, int]) -> int:
        """GPUs of a pool when all of `hold` is held, as far as it can be had."""
        return sum(self._obtained(o, hold[o]) for o in pool.offer_ids) * pool.gpus_per_node

    def _obtained(self, offer_id: str, nodes: int) -> int:
        return int(min(nodes, self.state(offer_id).most))

    # ------------------------------------------------------------------ other offers

    def listing(self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int]) -> Listing:
        """These, and those of which nodes are held: what `reoffer` would bring; InvalidValue where it cannot be."""
        named = {offer.id: offer for offer in offers}
        refuse_other_machines(self.cluster.nodes.values(), named)
        held = {node.offer.id: node.offer for node in self.cluster.nodes.values()}
        return listing_from([*offers, *(offer for o, offer in held.items() if o not in named)], limits, quotas)

    def reoffer(
        self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int], now_s: float
    ) -> None:
        """The list, the limits or the quotas are other ones; what is held beyond them is to be given back."""
        listing = self.listing(offers, limits, quotas)
        self.withdrawn = dict.fromkeys(listing.offers.keys() - {offer.id for offer in offers})
        for offer in offers:
            old = self.every.get(offer.id)
            self.ledger.offer(offer, now_s)
            if old is not None and old.price != offer.price:  # else the market's own price stands
                self.ledger.reprice(offer.id, offer.price, now_s)
        self.offers, self.limits = listing.offers, listing.limits
        self.every |= listing.offers
        self.pools.clear()
        self.pools |= listing.pools  # the kernel looks at this very mapping
        self.hold = {offer_id: self._wanted(offer_id) for offer_id in self.offers}
        self._keep_to_quotas()
        self._available = {offer_id: self._available.get(offer_id) for offer_id in self.offers}
        self._sold_out = {offer_id: n for offer_id, n in self._sold_out.items() if offer_id in self.offers}
        self._refused = {offer_id: n for offer_id, n in self._refused.items() if offer_id in self.offers}
        self.exposure.watch(self.offers.values(), now_s)
        self.cluster.reoffer(self.offers)
        self.changed = True

    def _wanted(self, offer_id: str) -> int:
        limit, wanted = self.limits[offer_id], self.hold.get(offer_id, 0)
        return max(limit.min_nodes, wanted if limit.max_nodes is None else min(wanted, limit.max_nodes))

    def _keep_to_quotas(self) -> None:
        for pool in self.pools.values():
            for offer_id in reversed(pool.offer_ids):
                over = -(-(self._held_or_wished(pool) - (pool.max_gpus or 0)) // pool.gpus_per_node)
                if pool.max_gpus is not None and over > 0:
                    self.hold[offer_id] = max(self.limits[offer_id].min_nodes, self.hold[offer_id] - over)

    def _held_or_wished(self, pool: Pool) -> int:
        return sum(self.hold[offer_id] for offer_id in pool.offer_ids) * pool.gpus_per_node

    def _quotas(self) -> dict[str, int]:
        pools = {offer.pool for offer in self.offers.values()}
        return {p.name: p.max_gpus for p in self.pools.values() if p.max_gpus is not None and p.name in pools}

    def was_offered(self, pool: str) -> bool:
        """A pool that was there once, and is not now."""
        return pool not in self.pools and any(offer.pool == pool for offer in self.every.values())

    def retire(self) -> bool:
        """Forget withdrawn offers of which the last node has gone; True if there were any."""
        gone = [o for o in self.withdrawn if not self.cluster.held[o] and not self.cluster.leaving[o]]
        for offer_id in gone:
            del self.withdrawn[offer_id], self.offers[offer_id], self.limits[offer_id], self.hold[offer_id]
            del self._available[offer_id]
            self._sold_out.pop(offer_id, None)
            self._refused.pop(offer_id, None)
        if gone:
            listing = listing_from(list(self.offers.values()), self.limits, self._quotas())
            self.pools.clear()
            self.pools |= listing.pools
        return bool(gone)

    # ------------------------------------------------------------------ what the cloud did

    def ready(self, node: Node) -> None:
        """A node can take work."""
        self.cluster.ready(node)
        self._refused.pop(node.offer.id, None)
        self.changed = True

    def noticed(self, node: Node) -> None:
        """The cloud will take a node."""
        self.cluster.withdraw(node, NodePhase.NOTICED)
        self.changed = True

    def released(self, node: Node, event: NodeReleased) -> bool:
        """A node that we gave back is gone. True if a sold-out offer has one for us again."""
        self._gone(node, event)
        return node.offer.id in self._sold_out

    def taken(self, node: Node, event: NodeLost) -> None:
        """The cloud took a node: a sold-out offer has one less for us."""
        self._gone(node, event)
        if node.offer.id in self._sold_out:
            self._sold_out[node.offer.id] = max(0, self._sold_out[node.offer.id] - 1)

    def _gone(self, node: Node, event: NodeLost | NodeReleased) -> None:
        self.cluster.remove(node)
        if event.void:
            self.ledger.void(node.id, event.at_s)
        else:
            self.ledger.close(node.id, event.at_s, billed_from_s=event.billed_from_s, billed_to_s=event.billed_to_s)
        self.changed = True

    def refused(self, node: Node, now_s: float) -> Action:
        """The cloud has none: count the offer as sold out for a while, the longer the more often in a row."""
        offer_id = node.offer.id
        self.cluster.remove(node)
        self.ledger.void(node.id, now_s)
        if offer_id not in self._sold_out or offer_id not in self._refused:  # else another node of the same request
            self._refused[offer_id] = self._refused.get(offer_id, 0) + 1
        self._sold_out[offer_id] = self.cluster.held[offer_id] + self.cluster.leaving[offer_id]
        again_s = min(REFUSED_AGAIN_S * 2.0 ** (self._refused[offer_id] - 1), REFUSED_AT_MOST_S)
        return SetTimer(RetryOffer(offer_id), now_s + again_s)

    def retry(self, offer_id: str) -> None:
        """The while is over."""
        self._sold_out.pop(offer_id, None)
        self.changed = True

    def reprice(self, offer_id: str, price: Price, now_s: float) -> None:
        """The market set another price: what was refused may be had at it, though nobody says so."""
        self.ledger.reprice(offer_id, price, now_s)
        self.retry(offer_id)

    def restock(self, offer_id: str, nodes: int | None) -> None:
        """The market has another number of nodes."""
        self._available[offer_id] = nodes
        self._refused.pop(offer_id, None)
        self.retry(offer_id)

    # ------------------------------------------------------------------ the purse

    def reserved(self, now_s: float) -> Money:
        """What is kept back for all nodes. O(nodes), and only looked at when there is a purse."""
        return self._ending(now_s, lambda offer: offer.reserve)

    def committed(self, now_s: float) -> Money:
        """What giving everything up at once may still cost: with what is spent, never more than the purse."""
        return self._ending(now_s, lambda offer: offer.ending(offer.wind_down_s))

    def _ending(self, now_s: float, held: Callable[[Offer], Money]) -> Money:
        now_us = microseconds(now_s)
        grains = 0
        for node in self.cluster.nodes.values():
            if node.gone_by_us is None:
                grains += held(node.offer).grains
            else:
                grains += node.offer.ending(max(0, node.gone_by_us - now_us) / 1e6).grains
        return Money(grains)

    def left(self, now_s: float) -> Money | None:
        """What is neither spent nor reserved; None without a purse."""
        if self.budget.purse is None:
            return None
        return self.budget.purse - self.ledger.spent(now_s) - self.reserved(now_s)

    def until_next_step(self, now_s: float) -> Money | None:
        """What may be spent before nodes must be given up; the last node needs to pay for no other."""
        if self.budget.purse is None or len(self.cluster.nodes) > 1:
            return self.left(now_s)
        return self.budget.purse - self.ledger.spent(now_s) - self.committed(now_s)

    @property
    def giving_up(self) -> bool:
        """Nodes are on their way out: what they reserve will soon be free."""
        return any(node.gone_by_us is not None for node in self.cluster.nodes.values())

    def give_up_half(self, now_s: float) -> list[Node]:
        """All that is left is reserved: give half of the nodes up, so that their reserves pay for the others.

        So the end comes in steps, and what is left over in the end is the reserve of the last node, not of all.
        """
        self.changed = True
        nodes = [n for n in self.cluster.nodes.values() if n.gone_by_us is None]
        nodes.sort(key=lambda node: (not node.idle, -node.offer.reserve.grains))
        victims = nodes[: (len(nodes) + 1) // 2]
        for node in victims:
            self._begin_to_end(node, now_s)
            if node.phase is not NodePhase.NOTICED:
                self.cluster.withdraw(node, NodePhase.NOTICED)
        self.most_nodes = len(nodes) - len(victims)
        return victims

    @property
    def most_held(self) -> int | None:
        """How many may be held beside those that the cloud will take: they count until they are gone."""
        if self.most_nodes is None:
            return None
        doomed = (n.phase is NodePhase.NOTICED and n.gone_by_us is None for n in self.cluster.nodes.values())
        return max(0, self.most_nodes - sum(doomed))

    @property
    def broke(self) -> bool:
        """The purse is spent."""
        return self.most_nodes == 0

    def refill(self, budget: Budget) -> None:
        """The user set another budget."""
        self.budget = budget
        self.most_nodes = None
        self.changed = True

    def _begin_to_end(self, node: Node, now_s: float) -> None:
        if node.gone_by_us is None:
            node.gone_by_us = microseconds(now_s) + microseconds(node.offer.wind_down_s)

    # ------------------------------------------------------------------ what to order

    def adjust(self, now_s: float) -> list[Action]:
        """Give back what is not wanted, then rent what is missing, as far as limits, supply and budget let us."""
        self.changed = self.short = blocked = False
        cluster = self.cluster
        actions: list[Action] = []
        for offer_id, wanted in self.hold.items():
            excess = cluster.held[offer_id] - wanted
            if excess > 0:  # nodes still booting go first: those that are ready can take work now
                spare = [*cluster.requested[offer_id], *reversed(cluster.idle[offer_id])]
                actions += [self._release(cluster.nodes[node_id], now_s) for node_id in spare[:excess]]
        actions += [self._release(node, now_s) for node in cluster.abandoned()]
        for offer_id, wanted in self.hold.items():
            if cluster.held[offer_id] < wanted:
                most = self.state(offer_id).most
                while cluster.held[offer_id] < min(wanted, most):
                    if not self._may_rent(offer_id, now_s):
                        blocked = True
                        break
                    actions.append(self._rent(offer_id, now_s))
        self.exposure.hold(cluster.held, now_s)
        burn = self.budget.burn
        blocked = blocked or (burn is not None and self.ledger.burn() > burn) or self._over_limits()
        self.to_clear = self._unwanted() if blocked else []
        return actions

    def _over_limits(self) -> bool:
        """More is held than may be, since the limits are other ones now."""
        held = self.cluster.held
        if any(limit.max_nodes is not None and held[o] > limit.max_nodes for o, limit in self.limits.items()):
            return True
        quotas = [pool for pool in self.pools.values() if pool.max_gpus is not None]
        return any(sum(held[o] for o in p.offer_ids) * p.gpus_per_node > (p.max_gpus or 0) for p in quotas)

    def _unwanted(self) -> list[Node]:
        """Nodes beyond what is wanted that are in use, the emptiest first: in the way of others, or over the budget."""
        nodes: list[Node] = []
        for offer_id, wanted in self.hold.items():
            excess = self.cluster.held[offer_id] - wanted
            if excess > 0:
                ready = [
                    n for n in self.cluster.nodes.values() if n.offer.id == offer_id and n.phase is NodePhase.READY
                ]
                nodes += sorted(ready, key=lambda node: -node.free)[:excess]
        return nodes

    def _rent(self, offer_id: str, now_s: float) -> Action:
        self._rented += 1
        node_id = f"n{self._rented}"
        self.cluster.add(node_id, self.offers[offer_id])
        self.ledger.open(node_id, offer_id, now_s)
        return RentNode(node_id, offer_id)

    def _release(self, node: Node, now_s: float) -> Action:
        self._begin_to_end(node, now_s)
        self.cluster.withdraw(node, NodePhase.RELEASING)
        return ReleaseNode(node.id)

    def _may_rent(self, offer_id: str, now_s: float) -> bool:
        offer = self.offers[offer_id]
        left = self.left(now_s)
        most = self.most_held
        if (most is not None and sum(self.cluster.held.values()) >= most) or (
            left is not None and left < offer.reserve
        ):
            self.short = True
            return False
        pool = self.pools[offer.pool]
        if pool.max_gpus is not None:
            held = sum(self.cluster.held[other] for other in pool.offer_ids)
            if (held + 1) * pool.gpus_per_node > pool.max_gpus:
                return False
        burn = self.budget.burn
        if burn is None or self.cluster.held[offer_id] < self.limits[offer_id].min_nodes:
            return True
        after = self.ledger.burn().micro_usd_per_h + self.ledger.price(offer_id).micro_usd_per_h
        return after <= burn.micro_usd_per_h

    def _obtainable(self, offer_id: str) -> int | None:
        cap = self.offers[offer_id].cap
        if self.broke or (cap is not None and self.ledger.price(offer_id) > cap):
            return 0
        bounds = [] if self._available[offer_id] is None else [self._available[offer_id]]
        if offer_id in self.withdrawn:
            bounds.append(self.cluster.held[offer_id])
        if offer_id in self._sold_out:  # those that are leaving still count for the cloud
            bounds.append(max(0, self._sold_out[offer_id] - self.cluster.leaving[offer_id]))
        return min(bound for bound in bounds if bound is not None) if bounds else None

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "offers": plain(list(self.offers.values())),
            "limits": plain(self.limits),
            "quotas": self._quotas(),
            "withdrawn": list(self.withdrawn),
            "former": plain([offer for offer_id, offer in self.every.items() if offer_id not in self.offers]),
            "budget": plain(self.budget),
            "hold": dict(self.hold),
            "available": dict(self._available),
            "sold_out": dict(self._sold_out),
            "refused": dict(self._refused),
            "rented": self._rented,
            "changed": self.changed,
            "short": self.short,
            "most_nodes": self.most_nodes,
            "cluster": self.cluster.facts(),
            "ledger": self.ledger.facts(),
            "exposure": self.exposure.facts(),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there; made with the offers, limits, quotas and budget of these facts."""
        self.withdrawn = dict.fromkeys(facts["withdrawn"])
        former = [restored(Offer, offer) for offer in facts["former"]]
        self.every = {offer.id: offer for offer in (*former, *self.offers.values())}
        self.hold, self._available = dict(facts["hold"]), dict(facts["available"])
        self._sold_out, self._rented = dict(facts["sold_out"]), facts["rented"]
        self._refused = dict(facts.get("refused", {}))  # not in snapshots of version 1, which are followed from there
        self.changed, self.short, self.most_nodes = facts["changed"], facts["short"], facts["most_nodes"]
        self.cluster.restore(facts["cluster"], self.offers)
        self.ledger.restore(facts["ledger"])
        self.exposure.restore(facts["exposure"])
