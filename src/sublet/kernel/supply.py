"""The renting half of the kernel: what is on offer, what is held and paid for, and what to rent or give back next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sublet.domain.actions import Action, ReleaseNode, RentNode, SetTimer
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import NodeLost, NodeReleased
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.offer import Offer
from sublet.domain.plan import OfferState, Pool
from sublet.domain.quantity import whole
from sublet.errors import InvalidValue
from sublet.kernel.cluster import Cluster, Node, NodePhase
from sublet.kernel.exposure import Exposure
from sublet.kernel.ledger import Ledger

__all__ = ["Supply"]

REFUSED_AGAIN_S = 60.0  # after a refusal, the offer counts as sold out for this long (unless the market says otherwise)


class Supply:
    """Nodes wanted (`hold`) against nodes held; `adjust` orders the difference, within limits and budget."""

    def __init__(
        self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int], budget: Budget
    ) -> None:
        if not offers:
            raise InvalidValue("offers", offers, "at least one offer")
        self.offers = {offer.id: offer for offer in offers}
        if len(self.offers) < len(offers):
            raise InvalidValue("offers", [offer.id for offer in offers], "of different ids")
        unknown = sorted(set(limits) - set(self.offers))
        if unknown:
            raise InvalidValue("limits", unknown[0], "an offer that is there: " + ", ".join(self.offers))
        self.limits = {offer.id: limits.get(offer.id, Limit()) for offer in offers}
        self.budget = budget
        self.pools = _pools_from_offers(offers)
        for pool, gpus in quotas.items():
            if pool not in self.pools:
                raise InvalidValue("quotas", pool, "a pool that is there: " + ", ".join(self.pools))
            whole(f"quotas[{pool}]", gpus)
            owned = sum(self.limits[o].min_nodes for o in self.pools[pool].offer_ids) * self.pools[pool].gpus_per_node
            if gpus < owned:
                raise InvalidValue(f"quotas[{pool}]", gpus, f"at least the {owned} GPUs that are owned")
            self.pools[pool] = replace(self.pools[pool], max_gpus=gpus)
        self.cluster = Cluster()
        self.ledger = Ledger(offers)
        self.hold = {offer_id: limit.min_nodes for offer_id, limit in self.limits.items()}
        self.exposure = Exposure(offers)
        self.changed = True  # `adjust` has something to look at
        self._available: dict[str, int | None] = dict.fromkeys(self.offers, None)
        self._sold_out: dict[str, int] = {}  # offer -> nodes that were ours when the cloud refused more
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
        )

    def most_gpus(self, pool: Pool) -> float:
        """GPUs that could be held in a pool, money aside."""
        most = sum(self.state(offer_id).most for offer_id in pool.offer_ids) * pool.gpus_per_node
        return most if pool.max_gpus is None else min(most, pool.max_gpus)

    def coming(self, pool: Pool) -> bool:
        """Whether nodes of a pool are on their way, or will be asked for."""
        held = self.cluster.held
        return any(self.cluster.requested[o] or held[o] < self._wished(o) for o in pool.offer_ids)

    def wish(self, hold: Mapping[str, int]) -> None:
        """What a plan wants held; owned nodes are held whatever it says."""
        for offer_id, nodes in hold.items():
            if offer_id not in self.offers:
                raise InvalidValue("hold", offer_id, "an offer that is there: " + ", ".join(self.offers))
            self.hold[offer_id] = max(nodes, self.limits[offer_id].min_nodes)
        self.changed = True

    def wished_burn(self) -> Price:
        """What an hour costs, at today's prices, when everything wished for is held, as far as it can be had."""
        return Price(
            sum(self._wished(offer_id) * self.ledger.price(offer_id).micro_usd_per_h for offer_id in self.hold)
        )

    def owned_burn(self) -> Price:
        """What an hour of the owned nodes costs, which no plan can save."""
        return Price(sum(limit.min_nodes * self.ledger.price(o).micro_usd_per_h for o, limit in self.limits.items()))

    def wished_gpus(self, pool: Pool) -> int:
        """GPUs of a pool when everything wished for is held, as far as it can be had."""
        return sum(self._wished(offer_id) for offer_id in pool.offer_ids) * pool.gpus_per_node

    def _wished(self, offer_id: str) -> int:
        return int(min(self.hold[offer_id], self.state(offer_id).most))

    # ------------------------------------------------------------------ what the cloud did

    def ready(self, node: Node) -> None:
        """A node can take work."""
        self.cluster.ready(node)
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
        """The cloud has none: count the offer as sold out for a while."""
        offer_id = node.offer.id
        self.cluster.remove(node)
        self.ledger.void(node.id, now_s)
        self._sold_out[offer_id] = self.cluster.held[offer_id] + self.cluster.leaving[offer_id]
        return SetTimer(f"retry {offer_id}", now_s + REFUSED_AGAIN_S)

    def retry(self, offer_id: str) -> None:
        """The while is over."""
        self._sold_out.pop(offer_id, None)
        self.changed = True

    def reprice(self, offer_id: str, price: Price, now_s: float) -> None:
        """The market set another price."""
        self.ledger.reprice(offer_id, price, now_s)
        self.changed = True

    def restock(self, offer_id: str, nodes: int | None) -> None:
        """The market has another number of nodes."""
        self._available[offer_id] = nodes
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
        self.to_clear = self._unwanted() if blocked or (burn is not None and self.ledger.burn() > burn) else []
        return actions

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
        if offer_id in self._sold_out:  # those that are leaving still count for the cloud
            bounds.append(max(0, self._sold_out[offer_id] - self.cluster.leaving[offer_id]))
        return min(bound for bound in bounds if bound is not None) if bounds else None


def _pools_from_offers(offers: Sequence[Offer]) -> dict[str, Pool]:
    pools: dict[str, Pool] = {}
    for offer in offers:
        pool = pools.get(offer.pool)
        if pool is None:
            pools[offer.pool] = Pool(
                name=offer.pool, gpu=offer.gpu, gpus_per_node=offer.gpus_per_node, offer_ids=(offer.id,)
            )
        elif (pool.gpu, pool.gpus_per_node) != (offer.gpu, offer.gpus_per_node):
            kinds = f"{pool.gpu} x {pool.gpus_per_node} like the others of pool {offer.pool}"
            raise InvalidValue(f"offer {offer.id}", f"{offer.gpu} x {offer.gpus_per_node}", kinds)
        else:
            pools[offer.pool] = replace(pool, offer_ids=(*pool.offer_ids, offer.id))
    return pools
