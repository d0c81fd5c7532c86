"""A recorded market, replayed: changes and when they are known, offers, and the nodes that a falling supply takes.

Without a clock and without nodes: the simulated world and the cloud in a box hold the nodes, and ask here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.offer import Offer
from sublet.domain.quantity import at_least

MarketChange = PriceChanged | AvailabilityChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """Supply of an offer will be `nodes` at `at_s`: time for notices, if that is less than is held."""

    offer_id: str
    nodes: int
    at_s: float


class ReadAhead:
    """Reads a record of changes, in order of time, one notice ahead of the clock."""

    def __init__(self, market: Iterable[MarketChange], notice_s: float) -> None:
        at_least("notice_s", notice_s, 0.0)
        self._notice_s = notice_s
        self._market = iter(market)
        self._head = next(self._market, None)

    @property
    def next_s(self) -> float:
        """When to read on; inf = the record is over."""
        return math.inf if self._head is None else self._head.at_s - self._notice_s

    def skip_to(self, now_s: float) -> list[MarketChange]:
        """Forget what is past; the last known price and supply of every offer."""
        last: dict[tuple[type, str], MarketChange] = {}
        while self._head is not None and self._head.at_s <= now_s:
            last[type(self._head), self._head.offer_id] = self._head
            self._head = next(self._market, None)
        return list(last.values())

    def read(self, now_s: float) -> Iterator[tuple[float, MarketChange | Fall]]:
        """All that is known by now and was not read yet, with its time: a notice comes before what it tells of."""
        while (change := self._head) is not None and change.at_s - self._notice_s <= now_s:
            self._head = next(self._market, None)
            if isinstance(change, AvailabilityChanged) and change.nodes is not None and self._notice_s > 0:
                fall = Fall(offer_id=change.offer_id, nodes=change.nodes, at_s=change.at_s)
                yield min(change.at_s, max(now_s, change.at_s - self._notice_s)), fall  # a late reader hears it first
            yield change.at_s, change


class Stock:
    """How many nodes of each offer can be held now: as recorded, less what a script has taken away."""

    def __init__(self) -> None:
        self._recorded: dict[str, int] = {}  # an offer that is not in it has no limit
        self._struck: dict[str, int] = {}
        self._announced: dict[str, list[tuple[int, float]]] = {}  # offer -> (what supply will be, from when on)

    def announce(self, offer_id: str, nodes: int, at_s: float) -> None:
        """Supply will change; what is being taken back need not be sold again meanwhile."""
        self._announced.setdefault(offer_id, []).append((nodes, at_s))

    def to_stay(self, offer_id: str) -> int | None:
        """How many can be held for longer than the notice; None = nothing is announced."""
        announced = self._announced.get(offer_id)  # a rise that follows a fall does not undo it
        return self.less_struck(offer_id, min(nodes for nodes, _ in announced)) if announced else None

    def was_announced(self, offer_id: str, at_s: float) -> bool:
        """Whether notices went out for what changes then."""
        return any(when_s == at_s for _, when_s in self._announced.get(offer_id, ()))

    def supply(self, offer_id: str) -> int | None:
        """None = as many as we ask for."""
        recorded = self._recorded.get(offer_id)
        return None if recorded is None else self.less_struck(offer_id, recorded)

    def less_struck(self, offer_id: str, nodes: int) -> int:
        """The rest of a recorded number."""
        return max(0, nodes - self._struck.get(offer_id, 0))

    def record(self, offer_id: str, nodes: int | None, at_s: float = math.inf) -> None:
        """The record says so from now on."""
        to_come = [each for each in self._announced.get(offer_id, ()) if each[1] > at_s]
        self._announced[offer_id] = to_come
        if nodes is None:
            self._recorded.pop(offer_id, None)
        else:
            self._recorded[offer_id] = nodes

    def strike(self, offer_id: str) -> None:
        """One less, until it is restored."""
        self._struck[offer_id] = self._struck.get(offer_id, 0) + 1

    def restore(self, offer_ids: Sequence[str], nodes: int) -> list[str]:
        """Give back up to `nodes`, offer by offer; the offers that have more now."""
        grown = []
        for offer_id in offer_ids:
            back = min(nodes, self._struck.get(offer_id, 0))
            nodes -= back
            if back:
                self._struck[offer_id] -= back
                grown.append(offer_id)
        return grown


class ReplayedMarket:
    """Held nodes that go when the record changes. Equal seeds take equal nodes.

    Usually a record says how many could be held, and a holder of no more than is left loses none. If a fall `hits_any`,
    it counts others too, and these are lost as often as those.
    """

    def __init__(self, offers: Mapping[str, Offer], rng: np.random.Generator, *, hits_any: bool = False) -> None:
        self.stock = Stock()
        self.too_dear: set[str] = set()  # offers whose price is above our cap
        self._offers, self._rng, self._hits_any = offers, rng, hits_any

    def notice(self, fall: Fall, staying: Sequence[str]) -> list[str]:
        """Supply will change: those of the nodes without a notice that are to get one."""
        stock = self.stock
        staying_of = stock.to_stay(fall.offer_id)
        was = stock.supply(fall.offer_id) if staying_of is None else staying_of
        stock.announce(fall.offer_id, fall.nodes, fall.at_s)
        return self._hit(staying, was, stock.less_struck(fall.offer_id, fall.nodes))

    def resupply(
        self, change: AvailabilityChanged, nodes: Sequence[str], lost_s: Mapping[str, float], now_s: float
    ) -> list[str]:
        """Supply is another one: those of the offer's nodes that go; `lost_s` is the announced end of some."""
        stock = self.stock
        was = None if stock.was_announced(change.offer_id, change.at_s) else stock.supply(change.offer_id)
        stock.record(change.offer_id, change.nodes, change.at_s)
        supply = stock.supply(change.offer_id)
        if supply is None:
            return []
        if self._hits_any and not lost_s:
            return self._hit(nodes, was, supply)
        return choose_lost(nodes, lost_s, supply, max(now_s, change.at_s), self._rng)

    def _hit(self, nodes: Sequence[str], was: int | None, supply: int) -> list[str]:
        """The nodes among these that a fall to `supply` takes; `was` is not known where notices chose them."""
        if not self._hits_any or was is None or supply >= was:
            return draw_excess(nodes, supply, self._rng)
        ours = self._rng.hypergeometric(len(nodes), max(0, was - len(nodes)), was - supply)
        return draw_excess(nodes, min(supply, len(nodes) - int(ours)), self._rng)

    def reprice(self, change: PriceChanged, nodes: Sequence[str]) -> list[str]:
        """The price is another one. We never pay more than the cap: the cloud takes its nodes back instead, all."""
        self.too_dear.discard(change.offer_id)
        cap = self._offers[change.offer_id].cap
        if cap is None or change.price <= cap:
            return []
        self.too_dear.add(change.offer_id)
        return list(nodes)

    def draw(self, nodes: Sequence[str], count: int) -> list[str]:
        """So many of these, with equal chances; all where there are fewer."""
        return draw_excess(nodes, max(0, len(nodes) - count), self._rng)

    def is_sold_out(self, offer_id: str, held: int) -> bool:
        """No more than is held can be had now."""
        supply = self.stock.supply(offer_id)
        return supply is not None and held >= supply


def draw_excess(nodes: Sequence[str], supply: int, rng: np.random.Generator) -> list[str]:
    """Those of `nodes` that are too many for `supply`, drawn with equal chances and in their order."""
    excess = len(nodes) - supply
    if excess <= 0:
        return []
    return [nodes[int(i)] for i in sorted(rng.choice(len(nodes), size=excess, replace=False))]


def choose_lost(
    nodes: Sequence[str], lost_s: Mapping[str, float], supply: int, now_s: float, rng: np.random.Generator
) -> list[str]:
    """Nodes that go when supply becomes `supply`: those whose announced end `lost_s` has come, then some of the rest.

    A node of the rest goes if it was rented after the notices went out, or if no notice is given.
    """
    due = [node for node in nodes if node in lost_s and lost_s[node] <= now_s]
    rest = [node for node in nodes if node not in set(due)]
    return due + draw_excess(rest, supply, rng)
