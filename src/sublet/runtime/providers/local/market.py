"""A recorded or scripted market, replayed in cloud time: what is due, and when the next thing will be."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.quantity import at_least, named, whole
from sublet.errors import InvalidValue

__all__ = ["Due", "Fall", "Happening", "MarketChange", "Replay", "Stock", "Strike"]

MarketChange = PriceChanged | AvailabilityChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """An entry of a script, on top of the recorded market.

    `notice` tells nodes that they will be taken, and takes them after the notice; `kill` takes them without a word. In
    both cases supply of their offer falls by as many, where it is limited; `restore` gives it back.
    """

    at_s: float
    verb: Literal["notice", "kill", "restore"]
    nodes: int | tuple[str, ...] = 1  # that many, drawn from those held; or these
    offer_id: str = ""  # "" = of all spot offers; `restore` needs one unless there is only one

    def __post_init__(self) -> None:
        at_least("at_s", self.at_s, 0.0)
        if self.verb not in ("notice", "kill", "restore"):
            raise InvalidValue("verb", self.verb, "notice, kill or restore")
        if isinstance(self.nodes, int):
            whole("nodes", self.nodes, 1)
        else:
            for node_id in self.nodes:
                named("nodes", node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """Supply of an offer will fall to `nodes` at `at_s`: time for notices."""

    offer_id: str
    nodes: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The announced end of these nodes has come; with `struck`, supply falls with them."""

    node_ids: tuple[str, ...]
    struck: bool


Happening = MarketChange | Fall | Strike | Due


class Replay:
    """Reads the record one notice ahead, as the simulated world does."""

    def __init__(self, market: Iterable[MarketChange], script: Sequence[Strike], notice_s: float) -> None:
        at_least("notice_s", notice_s, 0.0)
        self._notice_s = notice_s
        self._market = iter(market)
        self._head = next(self._market, None)
        self._order = count()
        self._due: list[tuple[float, int, Happening]] = []
        self._script = sorted(script, key=lambda strike: strike.at_s)

    def skip_to(self, now_s: float) -> list[MarketChange]:
        """Forget what is past, the script's too; the last known price and supply of every offer."""
        last: dict[tuple[type, str], MarketChange] = {}
        while self._head is not None and self._head.at_s <= now_s:
            last[type(self._head), self._head.offer_id] = self._head
            self._head = next(self._market, None)
        for strike in self._script:
            if strike.at_s > now_s:
                self.put(strike.at_s, strike)
        self._read_ahead(now_s)
        return list(last.values())

    def next_s(self) -> float:
        """When to ask again."""
        head_s = math.inf if self._head is None else self._head.at_s - self._notice_s
        return min(head_s, self._due[0][0] if self._due else math.inf)

    def until(self, now_s: float) -> list[Happening]:
        """What has come due, in order."""
        self._read_ahead(now_s)
        happened = []
        while self._due and self._due[0][0] <= now_s:
            happened.append(heapq.heappop(self._due)[2])
        return happened

    def put(self, at_s: float, what: Happening) -> None:
        """One more thing to come."""
        heapq.heappush(self._due, (at_s, next(self._order), what))

    def _read_ahead(self, now_s: float) -> None:
        while (change := self._head) is not None and change.at_s - self._notice_s <= now_s:
            self._head = next(self._market, None)
            if isinstance(change, AvailabilityChanged) and change.nodes is not None and self._notice_s > 0:
                fall = Fall(offer_id=change.offer_id, nodes=change.nodes, at_s=change.at_s)
                self.put(max(now_s, change.at_s - self._notice_s), fall)
            self.put(change.at_s, change)


class Stock:
    """How many nodes of each offer can be held now: as recorded, less what the script has taken away."""

    def __init__(self) -> None:
        self.too_dear: set[str] = set()  # offers whose price is above our cap
        self._recorded: dict[str, int] = {}  # an offer that is not in it has no limit
        self._struck: dict[str, int] = {}
        self._announced: dict[str, list[tuple[int, float]]] = {}  # offer -> (what supply will be, from when on)

    def announce(self, offer_id: str, nodes: int, at_s: float) -> None:
        """Supply will change; what is being taken back is not sold again meanwhile."""
        self._announced.setdefault(offer_id, []).append((nodes, at_s))

    def to_stay(self, offer_id: str) -> int | None:
        """How many can be held for longer than the notice; None = nothing is announced."""
        announced = self._announced.get(offer_id)  # a rise that follows a fall does not undo it
        return self.less_struck(offer_id, min(nodes for nodes, _ in announced)) if announced else None

    def supply(self, offer_id: str) -> int | None:
        """None = as many as we ask for."""
        recorded = self._recorded.get(offer_id)
        return None if recorded is None else self.less_struck(offer_id, recorded)

    def less_struck(self, offer_id: str, nodes: int) -> int:
        """What is left of a recorded number."""
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
