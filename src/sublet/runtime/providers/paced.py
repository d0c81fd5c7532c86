"""A provider whose calls wait for their turn: the one place where all clouds are asked no more often than they like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from sublet.domain.offer import Offer
from sublet.errors import NoAnswer, TooManyCalls
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.runtime.providers.pacing import Rates, Turns
from sublet.runtime.providers.protocol import Billed, Expires, Provider, RentedNode, TellMarket

__all__ = ["Ear", "PacedProvider"]

Answer = TypeVar("Answer")
Nodes = list[RentedNode]  # inside the class, `list` is a verb


class Ear(Protocol):
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
        ear: Ear,
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
