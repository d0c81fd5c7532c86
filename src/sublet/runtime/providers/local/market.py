"""The market of the cloud in a box in cloud time: what the record and a script bring next, and when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from sublet.domain.quantity import at_least, named, whole
from sublet.errors import InvalidValue
from sublet.market.replay import Fall, MarketChange, ReadAhead

__all__ = ["Due", "Happening", "Replay", "Strike"]


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
class Due:
    """The announced end of these nodes has come; with `struck`, supply falls with them."""

    node_ids: tuple[str, ...]
    struck: bool


Happening = MarketChange | Fall | Strike | Due


class Replay:
    """The record, one notice ahead, the script, and the ends that were announced: in order of time."""

    def __init__(self, market: Iterable[MarketChange], script: Sequence[Strike], notice_s: float) -> None:
        self._ahead = ReadAhead(market, notice_s)
        self._order = count()
        self._due: list[tuple[float, int, Happening]] = []
        self._script = sorted(script, key=lambda strike: strike.at_s)

    def skip_to(self, now_s: float) -> list[MarketChange]:
        """Forget what is past, the script's too; the last known price and supply of every offer."""
        last = self._ahead.skip_to(now_s)
        for strike in self._script:
            if strike.at_s > now_s:
                self.put(strike.at_s, strike)
        self._read(now_s)
        return last

    def next_s(self) -> float:
        """When to ask again."""
        return min(self._ahead.next_s, self._due[0][0] if self._due else math.inf)

    def until(self, now_s: float) -> list[Happening]:
        """What has come due, in order."""
        self._read(now_s)
        happened = []
        while self._due and self._due[0][0] <= now_s:
            happened.append(heapq.heappop(self._due)[2])
        return happened

    def put(self, at_s: float, what: Happening) -> None:
        """One more thing to come."""
        heapq.heappush(self._due, (at_s, next(self._order), what))

    def _read(self, now_s: float) -> None:
        for at_s, what in self._ahead.read(now_s):
            self.put(at_s, what)
