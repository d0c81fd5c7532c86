"""The renting half of the kernel: nodes wanted against nodes held and paid for, and what to rent or give back next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sublet.domain.actions import Action, ReleaseNode, RentNode, SetTimer
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import NodeLost, NodeReleased, PriceChanged, PriceHeardLate, RentRefused
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Pool
from sublet.domain.timers import RetryOffer
from sublet.kernel.cluster import Cluster, Node, NodePhase
from sublet.kernel.ledger import Ledger
from sublet.kernel.listing import hold_within, listing_from
from sublet.kernel.offering import Offering
from sublet.kernel.total import TotalBudget, begin_to_end
from sublet.kernel.values_json import to_plain
from sublet.kernel.waiting import Lines


class Supply:
    """Nodes wanted (`hold`) against nodes held; `adjust` orders the difference, within limits and budget."""

    def __init__(
        self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int], budget: Budget
    ) -> None:
        self.cluster, self.ledger = Cluster(), Ledger(offers)
        self.purse = TotalBudget(budget, self.cluster, self.ledger)
        self.offering = Offering(listing_from(offers, limits, quotas), self.cluster, self.ledger, self.purse)
        self.offers, self.limits, self.pools = self.offering.offers, self.offering.limits, self.offering.pools
        self.hold = {offer_id: limit.min_nodes for offer_id, limit in self.limits.items()}
        self.changed = True  # `adjust` has something to look at
        self.short = False  # the last `adjust` could not rent all that is wanted, for want of money in the budget
        self.to_clear: list[Node] = []  # nodes in use that must go, as of the last `adjust`
        self._tightened = False  # limits or quotas are other ones, and more may be held than they allow
        self.numbered = 0  # of the last node that was asked for, or is known to have been

    @property
    def budget(self) -> Budget:
        """As the user set it."""
        return self.purse.budget

    def coming(self, pool: Pool) -> bool:
        """Whether nodes of a pool are on their way, or will be asked for."""
        cluster, obtained = self.cluster, self.offering.obtained
        return any(cluster.requested[o] or cluster.held[o] < obtained(o, self.hold[o]) for o in pool.offer_ids)

    def wish(self, hold: Mapping[str, int]) -> None:
        """Nodes that a plan wants held."""
        for offer_id, nodes in hold.items():
            if (limit := self.limits.get(offer_id)) is not None:  # else it is not offered any more
                self.hold[offer_id] = max(nodes, limit.min_nodes)
        self.changed = True

    def hold_after(self, hold: Mapping[str, int]) -> dict[str, int]:
        """Nodes that would be wanted after `wish`: owned nodes in any case, and nothing that is not offered now."""
        limits = self.limits
        return self.hold | {o: max(nodes, limits[o].min_nodes) for o, nodes in hold.items() if o in limits}

    # ------------------------------------------------------------------ what the market and the user did

    def reoffer(
        self, offers: Sequence[Offer], limits: Mapping[str, Limit], quotas: Mapping[str, int], now_s: float
    ) -> None:
        """The list, the limits or the quotas are other ones; what is held beyond them is to be given back."""
        self.offering.change(offers, limits, quotas, now_s)
        self.hold = hold_within(self.hold, self.limits, self.pools)
        self.changed = self._tightened = True

    def retire(self) -> bool:
        """Forget withdrawn offers of which the last node has gone; True if there were any."""
        gone = self.offering.retire()
        for offer_id in gone:
            del self.hold[offer_id]
        return bool(gone)

    def reprice(self, offer_id: str, event: PriceChanged) -> None:
        """The market set another price: a refused offer may be had at it, without word."""
        since_s = event.since_s if isinstance(event, PriceHeardLate) else event.at_s
        self.ledger.reprice(offer_id, event.price, since_s)
        self.offering.memory.price(offer_id, event.price, event.at_s)
        self.retry(offer_id)

    def restock(self, offer_id: str, nodes: int | None, now_s: float) -> None:
        """The market has another number of nodes."""
        self.offering.restock(offer_id, nodes, now_s)
        self.changed = True

    def retry(self, offer_id: str) -> None:
        """A sold-out offer may be had again."""
        self.offering.retry(offer_id)
        self.changed = True

    def refill(self, budget: Budget) -> None:
        """The user set another budget."""
        self.purse.refill(budget)
        self.changed = True

    # ------------------------------------------------------------------ what became of a node

    def mark_ready(self, node: Node) -> None:
        """It can take work."""
        self.cluster.ready(node)
        self.offering.deliver(node.offer.id)
        self.changed = True

    def mark_noticed(self, node: Node) -> None:
        """The cloud will take it."""
        self.cluster.withdraw(node, NodePhase.NOTICED)
        self.changed = True

    def remove_released(self, node: Node, event: NodeReleased) -> bool:
        """We gave it back, and it is gone. True if a sold-out offer has one for us again."""
        self._remove(node, event)
        return self.offering.is_sold_out(node.offer.id)

    def remove_lost(self, node: Node, event: NodeLost) -> None:
        """The cloud took it."""
        self._remove(node, event)
        self.offering.take_back(node.offer.id)
        self.offering.memory.taken(node.offer.id, node.id)

    def _remove(self, node: Node, event: NodeLost | NodeReleased) -> None:
        self.cluster.remove(node)
        if event.void:
            self.ledger.void(node.id, event.at_s)
        else:
            self.ledger.close(node.id, event.at_s, billed_from_s=event.billed_from_s, billed_to_s=event.billed_to_s)
        self.changed = True

    def remove_refused(self, node: Node, event: RentRefused) -> Action:
        """The cloud has none: count the offer as sold out for a while, the longer the more often in a row."""
        self.cluster.remove(node)
        if event.paid:
            self.ledger.close(node.id, event.at_s)
        else:
            self.ledger.void(node.id, event.at_s)
        return SetTimer(RetryOffer(node.offer.id), event.at_s + self.offering.refuse(node.offer.id))

    def give_up_half(self, now_s: float) -> list[Node]:
        """All that is left in the budget is reserved: these nodes pay for the others."""
        self.changed = True
        return self.purse.give_up_half(now_s)

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
        actions += [self._release(node, now_s) for node in cluster.idle_noticed()]
        for offer_id, wanted in self.hold.items():
            if cluster.held[offer_id] < wanted:
                most = self.offering.most(offer_id)
                while cluster.held[offer_id] < min(wanted, most):
                    if not self._may_rent(offer_id, now_s):
                        blocked = True
                        break
                    actions.append(self._rent(offer_id, now_s))
        self.offering.exposure.hold(cluster.held, now_s)
        burn = self.budget.burn
        self._tightened = self._tightened and self._over_limits()
        blocked = blocked or self._tightened or (burn is not None and self.ledger.burn() > burn)
        self.to_clear = cluster.in_use_beyond(self.hold) if blocked else []
        return actions

    def _over_limits(self) -> bool:
        """More is held than may be, since the limits are other ones now."""
        held = self.cluster.held
        if any(limit.max_nodes is not None and held[o] > limit.max_nodes for o, limit in self.limits.items()):
            return True
        quotas = ((pool.gpus_per_node, quota) for pool in self.pools.values() for quota in pool.quotas)
        return any(sum(held[o] for o in offer_ids) * size > most for size, (offer_ids, most) in quotas)

    def _rent(self, offer_id: str, now_s: float) -> Action:
        self.numbered += 1
        node_id = f"n{self.numbered}"
        self.cluster.add(node_id, self.offers[offer_id])
        self.ledger.open(node_id, offer_id, now_s)
        return RentNode(node_id, offer_id)

    def _release(self, node: Node, now_s: float) -> Action:
        begin_to_end(node, now_s)
        self.cluster.withdraw(node, NodePhase.RELEASING)
        return ReleaseNode(node.id)

    def _may_rent(self, offer_id: str, now_s: float) -> bool:
        offer = self.offers[offer_id]
        if not self.purse.pays_for_one_more(offer, now_s):
            self.short = True
            return False
        pool = self.pools[offer.pool]
        for offer_ids, most in pool.quotas:
            held = sum(self.cluster.held[other] for other in offer_ids)
            if offer_id in offer_ids and (held + 1) * pool.gpus_per_node > most:
                return False
        burn = self.budget.burn
        if burn is None or self.cluster.held[offer_id] < self.limits[offer_id].min_nodes:
            return True
        after = self.ledger.burn().micro_usd_per_h + self.ledger.price(offer_id).micro_usd_per_h
        return after <= burn.micro_usd_per_h

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            **self.offering.facts(),
            "budget": to_plain(self.budget),
            "hold": dict(self.hold),
            "rented": self.numbered,
            "changed": self.changed,
            "short": self.short,
            "most_nodes": self.purse.most_nodes,
            "cluster": self.cluster.facts(),
            "ledger": self.ledger.facts(),
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there; made with the offers, limits, quotas and budget of these facts."""
        self.offering.restore(facts)
        self.hold, self.numbered = dict(facts["hold"]), facts["rented"]
        self.changed, self.short, self.purse.most_nodes = facts["changed"], facts["short"], facts["most_nodes"]
        self.cluster.restore(facts["cluster"], self.offers)
        self._tightened = self._over_limits()
        self.ledger.restore(facts["ledger"])


def let_go(supply: Supply, node: Node, promises: Lines, now_s: float) -> None:
    """The cloud takes it, and it is not replaced if those that stay are enough for what is promised in its pool.

    Whether one is wanted all the same is for the next plan to say.
    """
    offer_id, pool = node.offer.id, supply.pools[node.offer.pool]
    supply.offering.exposure.lose(offer_id, now_s)
    if node.phase is NodePhase.NOTICED or supply.hold[offer_id] < supply.cluster.held[offer_id]:
        return  # it does not count as held, or was not wanted
    held, size = supply.cluster.held, pool.gpus_per_node
    stay = sum(held[other] for other in pool.offer_ids) - 1
    on_demand = sum(held[other] for other in pool.markets.get(Market.ON_DEMAND, ()))
    steady = on_demand - (node.offer.market is Market.ON_DEMAND)
    if promises.promised[pool.name] <= stay * size and promises.steady[pool.name] <= steady * size:
        supply.hold[offer_id] = max(supply.limits[offer_id].min_nodes, supply.hold[offer_id] - 1)


def foresee(supply: Supply, hold: Mapping[str, int]) -> None:
    """A plan is taken: in a pool of both markets, jobs that give GPUs up look at which nodes go."""
    mixed = {o for pool in supply.pools.values() if pool.is_mixed for o in pool.offer_ids}
    supply.wish({offer_id: nodes for offer_id, nodes in hold.items() if offer_id in mixed})
