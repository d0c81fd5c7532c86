"""The budget: what is kept back so that every node can be given up within it, and how the end comes in steps."""

from __future__ import annotations

from collections.abc import Callable

from sublet.domain.budget import Budget
from sublet.domain.money import Money, microseconds
from sublet.domain.offer import Offer
from sublet.kernel.cluster import Cluster, Node, NodePhase
from sublet.kernel.ledger import Ledger

BESIDES_S = 900.0  # to end what is paid besides nodes, once all of them are gone


class TotalBudget:
    """The money of a budget against the nodes of a cluster and the bill so far."""

    def __init__(self, budget: Budget, cluster: Cluster, ledger: Ledger) -> None:
        self.budget = budget
        self.most_nodes: int | None = None  # it runs out: no more than this from now on; 0 = it is spent
        self._cluster, self._ledger = cluster, ledger

    def reserved(self, now_s: float) -> Money:
        """The reserve for all nodes. O(nodes), and only looked at when there is a budget."""
        return self._ending(now_s, lambda offer: offer.reserve)

    def committed(self, now_s: float) -> Money:
        """The cost at which all can be given up at once, at most: with what is spent, never more than the budget."""
        return self._ending(now_s, lambda offer: offer.ending(offer.wind_down_s))

    def _ending(self, now_s: float, held: Callable[[Offer], Money]) -> Money:
        now_us = microseconds(now_s)
        grains = 0
        for node in self._cluster.nodes.values():
            if node.gone_by_us is None:
                grains += held(node.offer).grains
            else:
                grains += node.offer.ending(max(0, node.gone_by_us - now_us) / 1e6).grains
        return Money(grains + self._besides(now_us))

    def _besides(self, now_us: int) -> int:
        """Grains for what is paid besides nodes, until the last of them can be gone, and for a while to end it, too."""
        if not (price := self.budget.besides.micro_usd_per_h):
            return 0
        ends = [
            microseconds(node.offer.wind_down_s) if node.gone_by_us is None else node.gone_by_us - now_us
            for node in self._cluster.nodes.values()
        ]
        return price * (max([0, *ends]) + microseconds(BESIDES_S))

    def left(self, now_s: float) -> Money | None:
        """Money that is neither spent nor reserved; None without a budget."""
        if self.budget.purse is None:
            return None
        return self.budget.purse - self._ledger.spent(now_s) - self.reserved(now_s)

    def until_next_step(self, now_s: float) -> Money | None:
        """Money that may be spent before nodes must be given up; the last node needs to pay for no other."""
        if self.budget.purse is None or len(self._cluster.nodes) > 1:
            return self.left(now_s)
        return self.budget.purse - self._ledger.spent(now_s) - self.committed(now_s)

    @property
    def giving_up(self) -> bool:
        """Nodes are on their way out: what they reserve will soon be free."""
        return any(node.gone_by_us is not None for node in self._cluster.nodes.values())

    def is_overdue(self, now_s: float) -> bool:
        """One of them is still there after its latest end: it has used up what it reserved, and goes on."""
        now_us = microseconds(now_s)
        return any(n.gone_by_us is not None and n.gone_by_us < now_us for n in self._cluster.nodes.values())

    def is_exceeded(self, now_s: float) -> bool:
        """Giving everything up at once would cost more than is left: it was looked at too late, or made smaller."""
        purse = self.budget.purse
        return purse is not None and self._ledger.spent(now_s) + self.committed(now_s) > purse

    def give_up_half(self, now_s: float) -> list[Node]:
        """All that is left is reserved: give half of the nodes up, so that their reserves pay for the others.

        So the end comes in steps, and what is left over in the end is the reserve of the last node, not of all. If the
        cloud does not end what was given up, or they would cost more than is left, nothing pays for the others: all go.
        """
        nodes = [n for n in self._cluster.nodes.values() if n.gone_by_us is None]
        nodes.sort(key=lambda node: (not node.idle, -node.offer.reserve.grains))
        victims = nodes if self.giving_up or self.is_exceeded(now_s) else nodes[: (len(nodes) + 1) // 2]
        for node in victims:
            begin_to_end(node, now_s)
            if node.phase is not NodePhase.NOTICED:
                self._cluster.withdraw(node, NodePhase.NOTICED)
        self.most_nodes = len(nodes) - len(victims)
        return victims

    @property
    def most_held(self) -> int | None:
        """How many may be held beside those that the cloud will take: they count until they are gone."""
        if self.most_nodes is None:
            return None
        doomed = (n.phase is NodePhase.NOTICED and n.gone_by_us is None for n in self._cluster.nodes.values())
        return max(0, self.most_nodes - sum(doomed))

    @property
    def broke(self) -> bool:
        """It is spent."""
        return self.most_nodes == 0

    def pays_for_one_more(self, offer: Offer, now_s: float) -> bool:
        """Whether a node of this offer can be rented and given up again within it."""
        most, left = self.most_held, self.left(now_s)
        if most is not None and sum(self._cluster.held.values()) >= most:
            return False
        return left is None or left >= offer.reserve

    def refill(self, budget: Budget) -> None:
        """The user set another budget."""
        self.budget = budget
        self.most_nodes = None


def begin_to_end(node: Node, now_s: float) -> None:
    """From now on the bill of this node is counted to its latest end."""
    if node.gone_by_us is None:
        node.gone_by_us = microseconds(now_s) + microseconds(node.offer.wind_down_s)
