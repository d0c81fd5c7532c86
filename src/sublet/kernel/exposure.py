"""How often nodes were taken from us, offer by offer: losses and node-hours, of which the older count less."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H

__all__ = ["Exposure"]

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
