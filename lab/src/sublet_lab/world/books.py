"""The books of a cloud: its charges, to the grain, and the allowed error of a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from sublet.domain.money import Price
from sublet.domain.offer import Offer
from sublet.runtime.controller.money.timekeeping import MARK_EVERY_S
from sublet_lab.world.cloud import Instance
from sublet_lab.world.heap import World

OURS_S = 30.0  # of a machine that we gave back: an order takes up to sixteen seconds to come, and so does the other one
UNTOLD_S = 150.0  # ... of one that went by itself: until listings, which may fail, were without it often enough
SEEN_S = 2.0  # that a ledger may miss of a machine: how long news travels


class Books:
    """The books of all that was ever rented, at every price.

    With `keeps_records` the provider tells what is in them.
    """

    def __init__(self, world: World, offers: Sequence[Offer], *, keeps_records: bool) -> None:
        self.world, self.offers, self.keeps_records = world, tuple(offers), keeps_records
        self.instances: dict[str, Instance] = {}  # by token
        self._prices = {offer.id: [(-math.inf, offer.price)] for offer in offers}
        self.attended: Callable[[], bool] = lambda: True  # whether a controller is there, and awake
        self.lease_s = 0.0
        self.ordered: dict[str, Offer] = {}  # nodes, by controllers that ended before they had an answer

    def alive(self) -> list[Instance]:
        """Instances that exist and are paid for."""
        return [instance for instance in self.instances.values() if instance.ended_s is None]

    def spent_grains(self) -> float:
        """Charges so far."""
        return sum(self._cost_grains(instance) for instance in self.instances.values())

    def burn_grains_per_s(self) -> float:
        """The present rate of charges."""
        return sum(self._prices[i.offer_id][-1][1].micro_usd_per_h for i in self.alive()) * 1e6

    def nobody_wrote_down(self, node_ids: Collection[str]) -> None:
        """To the log these are there. The end of one was seen, and its observer died before it was written down."""
        for instance in self.instances.values():
            if instance.ended_s is not None and instance.node_id in node_ids:
                instance.alone = True

    @property
    def slack_grains(self) -> float:
        """Without records: an order comes before the machine, and news of its end after it."""
        if self.keeps_records:
            return 0.0
        late = sum(self._late_s(i) * self._last_price(i).micro_usd_per_h * 1e6 for i in self.instances.values())
        return min(late, self._unknown_grains(lambda _: UNTOLD_S)) + self._unheard_grains()

    def _late_s(self, instance: Instance) -> float:
        """An end without a controller to write it down counts for a lease after the last mark."""
        if not instance.ours:
            return UNTOLD_S
        return OURS_S + (MARK_EVERY_S + self.lease_s if instance.alone else 0.0)

    def _unheard_grains(self) -> float:
        """Orders that ended with their giver: without records it is unknown that nothing came of them."""
        rented = {instance.node_id for instance in self.instances.values()}
        held_s = OURS_S + MARK_EVERY_S + self.lease_s
        return sum(
            max(held_s, offer.minimum_billing_s) * offer.price.micro_usd_per_h * 1e6
            for node_id, offer in self.ordered.items()
            if node_id not in rented
        )

    @property
    def short_grains(self) -> float:
        """Without records: next to nothing. An end that was seen has its time; one that was not counts for its lease.

        The standstill of an agent beyond its lease, which ended when it went on, is unknown.
        """
        if self.keeps_records:
            return self.slack_grains  # what there is, either way
        return self._unknown_grains(lambda instance: SEEN_S + (self._unseen_s(instance) if instance.alone else 0.0))

    def _unseen_s(self, instance: Instance) -> float:
        return self.lease_s + (0.0 if instance.node is None else instance.node.overslept_s)

    def _unknown_grains(self, unknown_s: Callable[[Instance], float]) -> float:
        return sum(unknown_s(i) * self._prices[i.offer_id][0][1].micro_usd_per_h * 1e6 for i in self.instances.values())

    def steps_grains(self, off_s: float) -> float:
        """A record is as long as it was, and lies elsewhere: a part of it is charged at the price before or after."""
        steps = 0.0
        for instance in self.instances.values():
            ended_s = self.world.now_s if instance.ended_s is None else instance.ended_s
            for (_, before), (since_s, after) in pairwise(self._prices_of(instance)):
                if instance.began_s - off_s <= since_s <= ended_s + off_s:
                    steps += abs(after.micro_usd_per_h - before.micro_usd_per_h) * 1e6
        return steps * off_s

    @property
    def untold_grains(self) -> float:
        """None: with records all ends are in them, and what there is without is above."""
        return 0.0

    def _cost_grains(self, instance: Instance) -> float:
        """The run at the price of its time; and the rest of the least bill, at the last one."""
        offer = next(offer for offer in self.offers if offer.id == instance.offer_id)
        ended_s = self.world.now_s if instance.ended_s is None else instance.ended_s
        changes, grains, last = self._prices_of(instance), 0.0, 0.0
        for (since_s, price), until_s in zip(changes, [*(at for at, _ in changes[1:]), math.inf], strict=True):
            if since_s <= ended_s:
                last = price.micro_usd_per_h * 1e6
                grains += last * max(0.0, min(until_s, ended_s) - max(since_s, instance.began_s))
        if instance.ended_s is not None:
            held_s = ended_s - instance.began_s
            begun_s = math.ceil(held_s / offer.billed_by_s) * offer.billed_by_s if offer.billed_by_s else 0.0
            grains += last * max(0.0, max(offer.minimum_billing_s, begun_s) - held_s)
        return grains

    def _last_price(self, instance: Instance) -> Price:
        """At its end."""
        ended_s = self.world.now_s if instance.ended_s is None else instance.ended_s
        return [price for since_s, price in self._prices_of(instance) if since_s <= ended_s][-1]

    def _prices_of(self, instance: Instance) -> Sequence[tuple[float, Price]]:
        """Its prices, and from when on."""
        return self._prices[instance.offer_id]
