"""Recent supply and prices of the market, and announced reclaims.

A policy that looks ahead wants the pace at which supply and prices move; it keeps no notes, so they are here. And a
node that was noticed is often given back before it is taken: without a note of the fall, the same capacity would be
rented anew, to be lost when the cloud takes it.

Losses and node-hours are counted offer by offer, of which the older count less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeVar

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H

T = TypeVar("T")
REMEMBERED_S = 86_400.0  # a day of changes: what a look ahead derives from them needs four hours of it
Changes = tuple[tuple[float, T], ...]  # (from when on, what), oldest first


class MarketMemory:
    """Per offer: changes of the last day, as tuples that snapshots point to, and the falls that are still to come."""

    def __init__(self) -> None:
        self.capacity: dict[str, Changes[int | None]] = {}
        self.prices: dict[str, Changes[Price]] = {}
        self._falls: dict[str, dict[str, float]] = {}  # offer -> node -> when the cloud takes it
        self._wake_s: float | None = None  # when the kernel will be woken for the first of them

    def stock(self, offer_id: str, nodes: int | None, now_s: float) -> None:
        """So many can be held from now on. A fall announced until now is in this number, or was called off."""
        self.capacity[offer_id] = _with_change(self.capacity.get(offer_id, ()), now_s, nodes)
        self._pass(offer_id, now_s)

    def price(self, offer_id: str, price: Price, now_s: float) -> None:
        """It costs this from now on."""
        self.prices[offer_id] = _with_change(self.prices.get(offer_id, ()), now_s, price)

    # ------------------------------------------------------------------ announced falls

    def announce(self, offer_id: str, node_id: str, lost_s: float) -> None:
        """The cloud will take this node from its holder; one that does not say when counts once it is gone."""
        if not math.isfinite(lost_s):
            return
        self._falls.setdefault(offer_id, {})[node_id] = lost_s

    def taken(self, offer_id: str, node_id: str) -> None:
        """It has been taken: what is left to be had, the market says."""
        self._drop(offer_id, [node_id])

    def falls(self, offer_id: str) -> tuple[tuple[float, int], ...]:
        """(when, nodes) of what is announced, the nearest first."""
        falls = self._falls.get(offer_id)
        return tuple(sorted(Counter(falls.values()).items())) if falls else ()

    def falling(self, offer_id: str) -> int:
        """How many nodes of it are to be taken. O(1)."""
        return len(self._falls.get(offer_id, ()))

    def wake(self, counts: Callable[[str], bool]) -> float | None:
        """When the first fall of an offer that counts is due, to be woken then; None = there is none, or it is known.

        A market need not say that it has fallen, and a fall that was called off is never heard of again.
        """
        if not self._falls:
            return None
        due = (min(falls.values()) for offer_id, falls in self._falls.items() if counts(offer_id))
        first_s = min(due, default=None)
        if first_s is None or (self._wake_s is not None and self._wake_s <= first_s):
            return None
        self._wake_s = first_s
        return first_s

    def pass_by(self, now_s: float) -> bool:
        """Forget what was due by now; True if there was any."""
        self._wake_s = None
        passed = [self._pass(offer_id, now_s) for offer_id in list(self._falls)]
        return any(passed)

    def _pass(self, offer_id: str, now_s: float) -> bool:
        return self._drop(offer_id, [node for node, at_s in self._falls.get(offer_id, {}).items() if at_s <= now_s])

    def _drop(self, offer_id: str, node_ids: Iterable[str]) -> bool:
        falls = self._falls.get(offer_id, {})
        known = [node_id for node_id in node_ids if falls.pop(node_id, None) is not None]
        if known and not falls:
            del self._falls[offer_id]
        return bool(known)

    # ------------------------------------------------------------------ another list, and snapshots

    def keep_to(self, offers: Container[str]) -> None:
        """Offers that are not there any more are forgotten."""
        for notes in (self.capacity, self.prices, self._falls):
            for offer_id in [each for each in notes if each not in offers]:
                del notes[offer_id]

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "capacity": {offer_id: [list(each) for each in changes] for offer_id, changes in self.capacity.items()},
            "prices": {
                offer_id: [[at_s, price.micro_usd_per_h] for at_s, price in changes]
                for offer_id, changes in self.prices.items()
            },
            "falls": {offer_id: dict(falls) for offer_id, falls in self._falls.items()},
            "wake_s": self._wake_s,
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.capacity = {o: tuple((at_s, nodes) for at_s, nodes in each) for o, each in facts["capacity"].items()}
        self.prices = {o: tuple((at_s, Price(micro)) for at_s, micro in each) for o, each in facts["prices"].items()}
        self._falls = {offer_id: dict(falls) for offer_id, falls in facts["falls"].items()}
        self._wake_s = facts["wake_s"]


def _with_change(changes: Changes[T], now_s: float, what: T) -> Changes[T]:
    """The changes of the last day and the one that was in force when it began; the last word of an instant counts."""
    if changes and changes[-1][0] == now_s:
        changes = changes[:-1]
    if changes and changes[-1][1] == what:
        return changes
    old = sum(at_s <= now_s - REMEMBERED_S for at_s, _ in changes)
    return (*changes[max(0, old - 1) :], (now_s, what))


FORGOTTEN_S = 86_400.0  # what is a day old counts 1 / e: markets differ from day to day, and with how much is held

THREAT = 0.5  # of a loss, that a threat counts as; EC2 publishes no figure of how many of them come true


class Exposure:
    """Only spot offers that are said to be reclaimed are watched; of the others nothing is ever seen."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._held: dict[str, int] = {}  # nodes
        self._sums: dict[str, tuple[float, float, float]] = {}  # losses, node-seconds, as of
        self.watch(offers, 0.0)

    def watch(self, offers: Iterable[Offer], now_s: float) -> None:
        """These from now on; what was seen of those that were watched before is kept."""
        watched = [offer.id for offer in offers if offer.market is Market.SPOT and offer.hazard_per_h > 0]
        self._held = {offer_id: self._held.get(offer_id, 0) for offer_id in watched}
        self._sums = {offer_id: self._sums.get(offer_id, (0.0, 0.0, now_s)) for offer_id in watched}

    def hold(self, held: Mapping[str, int], now_s: float) -> None:
        """So many nodes are held from now on."""
        for offer_id, nodes in self._held.items():
            if held.get(offer_id, 0) != nodes:
                self._sums[offer_id] = self._aged(offer_id, now_s)
                self._held[offer_id] = held.get(offer_id, 0)

    def lose(self, offer_id: str, now_s: float) -> None:
        """The cloud takes a node, or says that it will."""
        if offer_id in self._sums:
            lost, held_s, _ = self._aged(offer_id, now_s)
            self._sums[offer_id] = (lost + 1.0, held_s, now_s)

    def threaten(self, offer_id: str, now_s: float) -> None:
        """The cloud says that it may take a node: the offer is taken from more often than what was lost shows."""
        if offer_id in self._sums:
            lost, held_s, _ = self._aged(offer_id, now_s)
            self._sums[offer_id] = (lost + THREAT, held_s, now_s)

    def seen(self, offer_id: str, now_s: float) -> tuple[float, float]:
        """Losses, and the node-hours in which they happened."""
        if offer_id not in self._sums:
            return 0.0, 0.0
        lost, held_s, _ = self._aged(offer_id, now_s)
        return lost, held_s / SECONDS_PER_H

    def _aged(self, offer_id: str, now_s: float) -> tuple[float, float, float]:
        lost, held_s, as_of_s = self._sums[offer_id]
        kept = math.exp((as_of_s - now_s) / FORGOTTEN_S)
        return lost * kept, held_s * kept + self._held[offer_id] * FORGOTTEN_S * (1.0 - kept), now_s

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {offer_id: [self._held[offer_id], *sums] for offer_id, sums in self._sums.items()}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._held = {offer_id: held for offer_id, (held, *_) in facts.items()}
        self._sums = {offer_id: (lost, held_s, as_of_s) for offer_id, (_, lost, held_s, as_of_s) in facts.items()}
