"""Rate limiting of provider calls: how often each may be made, the pause after a "too many", and turns.

Clouds let an account make only so many calls: a bucket of tokens that fills again. We keep one of our own for each
call, so that five hundred jobs that want nodes at once wait here, in order, and the cloud is not asked in vain. A
refusal all the same (`TooManyCalls`) empties the bucket, halves its pace and makes all calls wait, as long as the cloud
says or twice as long as the last time. Every call that goes well gives some of the pace back.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from sublet.domain.offer import Offer
from sublet.domain.quantity import positive, whole
from sublet.errors import NoAnswer, TooManyCalls
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.runtime.providers.protocol import Billed, Expires, Provider, RentedNode, TellMarket

Answer = TypeVar("Answer")
Nodes = list[RentedNode]  # inside the class, `list` is a verb
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LONGEST_TOLD_S = 600.0  # that a cloud's own word keeps us away; it may say so again; a header must not cost more
UNKNOWN_PER_S = 4.0  # the pace that is halved first where no limit was known
SLOWEST_PER_S = 0.1
GIVEN_BACK = 1.1  # times the pace, for each call that goes well: seven of them make up for one refusal
FREE_PER_S = 1000.0  # a pace that is as good as none


class _Ear(Protocol):
    """Hears how it goes at the door."""

    def throttled(self, call: str) -> None:
        """The cloud has said "too many"."""

    def waits(self, call: str, waiting: int, last_s: float) -> None:
        """So many wait, and the last of them for so long."""


class PacedProvider:
    """A call refused as too much is asked again, in its turn, until the cloud lets it in: no intent is lost.

    `insist` is called before a call is made, however long that waited, and raises if it may not be made any more.
    """

    def __init__(
        self,
        provider: Provider,
        rates: Rates | None = None,
        *,
        ear: _Ear,
        insist: Callable[[], None] = lambda: None,
        wall: Wall = WALL,
        rng: Rng = RNG,
    ) -> None:
        self._provider, self._ear, self._insist, rates = provider, ear, insist, rates or Rates()
        self._renting: Counter[str] = Counter()  # nodes whose rent is under way
        self._unwanted: set[str] = set()  # those of them that are not wanted any more
        self._turns = {
            call: Turns(rate, wall=wall, rng=rng, full=self._full(call))
            for call, rate in (("rent", rates.rent), ("release", rates.release), ("list", rates.list))
        }

    @property
    def offers(self) -> Sequence[Offer]:
        """Offers for rent here."""
        return self._provider.offers

    def price_age_s(self) -> float | None:
        """As the provider says."""
        return self._provider.price_age_s()

    def access_left_s(self) -> float | None:
        """As the provider says, if it is one that says."""
        return self._provider.access_left_s() if isinstance(self._provider, Expires) else None

    async def open(self, tell: TellMarket) -> None:
        """Its first look is a listing, too."""
        await self._ask("list", "", lambda: self._provider.open(tell))

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """In its turn; NoAnswer if it was withdrawn before, so that nothing is rented in vain."""
        self._renting[node_id] += 1
        try:
            await self._ask("rent", node_id, lambda: self._provider.rent(node_id, offer_id, token))
        finally:
            self._renting[node_id] -= 1
            if not self._renting[node_id]:
                del self._renting[node_id]
                self._unwanted.discard(node_id)

    def withdraw(self, node_id: str) -> None:
        """It is not wanted any more: a rent that still waits for its turn is not made."""
        if node_id in self._renting:
            self._unwanted.add(node_id)
            self._turns["rent"].withdraw(node_id)

    async def release(self, node_id: str) -> Billed | None:
        """In its turn."""
        return await self._ask("release", node_id, lambda: self._provider.release(node_id))

    async def list(self) -> Nodes:
        """In its turn."""
        return await self._ask("list", "", self._provider.list)

    async def close(self) -> None:
        """Stop watching."""
        await self._provider.close()

    async def _ask(self, call: str, name: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        turns = self._turns[call]
        while True:
            if (call == "rent" and name in self._unwanted) or not await turns.turn(name):
                raise NoAnswer(f"{call} of {name}", "it was withdrawn before its turn came")
            self._insist()
            try:
                answer = await ask()
            except TooManyCalls as error:
                self._ear.throttled(call)
                turns.refuse(error.wait_s)
                continue
            turns.accept()
            return answer

    def _full(self, call: str) -> Callable[[int, float], None]:
        return lambda waiting, last_s: self._ear.waits(call, waiting, last_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many calls at once, and then so many a second; without limit unless it is known."""

    per_s: float = math.inf
    burst: int = 1

    def __post_init__(self) -> None:
        if self.per_s != math.inf:
            positive("per_s", self.per_s)
        whole("burst", self.burst, 1)


UNLIMITED_RATE = Rate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one cloud, by call."""

    rent: Rate = field(default=UNLIMITED_RATE)
    release: Rate = field(default=UNLIMITED_RATE)
    list: Rate = field(default=UNLIMITED_RATE)


@dataclass(eq=False, slots=True)
class _Waiting:
    name: str
    came: asyncio.Future[bool]


class Turns:
    """Queue for one kind of call, first come, first served.

    `full` hears how many there are, and for how long the last of them waits.
    """

    def __init__(
        self,
        rate: Rate,
        *,
        wall: Wall = WALL,
        rng: Rng = RNG,
        full: Callable[[int, float], None] = lambda _, __: None,
    ) -> None:
        self._rate, self._wall, self._rng, self._full = rate, wall, rng, full
        self._per_s, self._level, self._at_s = rate.per_s, float(rate.burst), wall.monotonic()
        self._closed_until_s = -math.inf  # no call before
        self._pause_s = FIRST_PAUSE_S
        self._waiting: dict[_Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def per_s(self) -> float:
        """Calls a second, as far as the cloud has let us make them lately."""
        return self._per_s

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def turn(self, name: str) -> bool:
        """Returns when it is one's turn; False = withdrawn while it waited."""
        if not self._waiting and self._wait_s() <= 0.0:
            self._take()
            return True
        mine = _Waiting(name, asyncio.get_running_loop().create_future())
        self._waiting[mine] = None
        self._serve()
        try:
            return await mine.came
        finally:
            self._waiting.pop(mine, None)

    def withdraw(self, name: str) -> None:
        """A call under this name need not wait any longer."""
        for each in [each for each in self._waiting if each.name == name]:
            del self._waiting[each]
            if not each.came.done():
                each.came.set_result(False)

    def accept(self) -> None:
        """A call went well."""
        if self._closed_until_s <= self._wall.monotonic():
            self._pause_s = FIRST_PAUSE_S
        if self._per_s < self._rate.per_s:
            self._refill()
            self._per_s = min(self._rate.per_s, self._per_s * GIVEN_BACK)
            if self._per_s > FREE_PER_S:
                self._per_s = self._rate.per_s

    def refuse(self, wait_s: float | None = None) -> None:
        """The cloud has said "too many", and perhaps for how long; those already on their way say the same.

        A number in an answer may be anything (a date taken for seconds is years), and a waiting call may be a release,
        of a node that costs until it is made. So it is believed up to a bound, and then asked again.
        """
        now_s, told_s = self._wall.monotonic(), 0.0
        if wait_s is not None and wait_s > 0.0:  # which no NaN is
            told_s = min(wait_s, LONGEST_TOLD_S)
        if now_s >= self._closed_until_s:
            pause_s = self._pause_s * (0.5 + self._rng.random())  # not at the same moment as others of this account
            self._pause_s = min(LONGEST_PAUSE_S, 2.0 * self._pause_s)
            self._per_s = max(SLOWEST_PER_S, min(self._per_s, UNKNOWN_PER_S) / 2)
            self._closed_until_s = now_s + pause_s
        self._closed_until_s = max(self._closed_until_s, now_s + told_s)
        self._level, self._at_s = 0.0, now_s
        self._tell_full(len(self._waiting) + 1, self._closed_until_s - now_s)

    # ------------------------------------------------------------------

    def _serve(self) -> None:
        """Let calls in that may go, and come again for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            if (wait_s := self._wait_s()) > 0.0:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._serve)
                self._tell_full(len(self._waiting), wait_s)
                return
            first = next(iter(self._waiting))
            del self._waiting[first]
            if not first.came.done():  # else its caller is gone
                self._take()
                first.came.set_result(True)

    def _tell_full(self, waiting: int, first_s: float) -> None:
        self._full(waiting, first_s + (waiting - 1) / self._per_s)

    def _take(self) -> None:
        self._refill()
        self._level -= 1.0

    def _refill(self) -> None:
        now_s = self._wall.monotonic()
        if self._per_s == math.inf:
            self._level = max(1.0, float(self._rate.burst))
        else:
            self._level = min(float(self._rate.burst), self._level + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s

    def _wait_s(self) -> float:
        self._refill()
        closed_s = self._closed_until_s - self._wall.monotonic()
        missing = 1.0 - 1e-9 - self._level  # a sum of small times is a breath short of one
        return max(closed_s, missing / self._per_s if missing > 0.0 else 0.0)
