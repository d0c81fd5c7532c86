"""The market of the cloud in a box in cloud time: what the record and a script bring next, and when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from sublet.domain.quantity import at_least, named, whole, within
from sublet.errors import InvalidValue
from sublet.market.replay import Fall, MarketChange, ReadAhead

MOST_SHARE = 0.99  # when all is done nothing is left to take


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """An entry of a script, on top of the recorded market.

    `notice` tells nodes that they will be taken, and takes them after the notice; `kill` takes them without a word. In
    both cases supply of their offer falls by as many, where it is limited; `restore` gives it back.
    It comes at a time, or once jobs have done a `share` of their work: then it waits for a node on which one trains.
    """

    at_s: float = 0.0
    verb: Literal["notice", "kill", "restore"]
    nodes: int | tuple[str, ...] = 1  # that many, drawn from those held; or these
    offer_id: str = ""  # "" = of all spot offers; `restore` needs one unless there is only one
    share: float | None = None  # of the work of all jobs; None = by `at_s`

    def __post_init__(self) -> None:
        at_least("at_s", self.at_s, 0.0)
        if self.share is not None:
            within("share", self.share, 0.0, MOST_SHARE)
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
        self._script = sorted((each for each in script if each.share is None), key=lambda strike: strike.at_s)
        self._by_share = sorted((each for each in script if each.share is not None), key=_share)

    def skip_to(self, now_s: float, share: float = 0.0) -> list[MarketChange]:
        """Forget what is past, the script's too; the last known price and supply of every offer."""
        last = self._ahead.skip_to(now_s)
        if share > 0.0:
            self._by_share = [strike for strike in self._by_share if _share(strike) > share]
        for strike in self._script:
            if strike.at_s > now_s:
                self.put(strike.at_s, strike)
        self._read(now_s)
        return last

    def next_s(self) -> float:
        """When to ask again."""
        return min(self._ahead.next_s, self._due[0][0] if self._due else math.inf)

    def until(self, now_s: float) -> list[Happening]:
        """Due changes, in order."""
        self._read(now_s)
        happened = []
        while self._due and self._due[0][0] <= now_s:
            happened.append(heapq.heappop(self._due)[2])
        return happened

    @property
    def awaits_work(self) -> bool:
        """Something comes when jobs have come so far."""
        return bool(self._by_share)

    def reached(self, share: float, open_to: Callable[[Strike], Collection[str]]) -> list[Strike]:
        """The next that so much work calls for, unless it finds no node now: one at a time, in their order."""
        strike = self._by_share[0] if self._by_share else None
        if strike is None or _share(strike) > share or not (strike.verb == "restore" or open_to(strike)):
            return []
        return [self._by_share.pop(0)]

    def put(self, at_s: float, what: Happening) -> None:
        """One more thing to come."""
        heapq.heappush(self._due, (at_s, next(self._order), what))

    def _read(self, now_s: float) -> None:
        for at_s, what in self._ahead.read(now_s):
            self.put(at_s, what)


def _share(strike: Strike) -> float:
    return strike.share or 0.0
