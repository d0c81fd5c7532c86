"""The contract of everything that rents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed, PriceChanged, PriceDoubted
from sublet.domain.offer import Offer

MarketNews = NodeNoticed | NodeLost | PriceChanged | PriceDoubted | AvailabilityChanged
TellMarket = Callable[[MarketNews], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedNode:
    """An instance that exists at the provider and is paid for, as the provider itself records it."""

    node_id: str
    offer_id: str
    token: str
    began_s: float  # cloud time
    instance: str = ""  # the provider's own name of it
    elsewhere: bool = False  # this controller in another directory, of which this one is a copy, goes on renewing it


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """The provider's own charge for a node that is gone, in cloud time; None = from our order, until now."""

    from_s: float | None = None
    to_s: float | None = None
    nothing: bool = False  # it never was there


class Provider(Protocol):
    """Rents and gives back. All times are cloud time; every call may be repeated without harm.

    A node counts as ready when its agent has said Hello with `token`, not before: that is the engine's news, not the
    provider's. The provider tells notices, losses, prices and availability through `tell`.
    """

    @property
    def offers(self) -> Sequence[Offer]:
        """Offers for rent here."""
        ...

    def price_age_s(self) -> float | None:
        """Seconds on the wall since its prices were last confirmed; None = never."""
        ...

    async def open(self, tell: TellMarket) -> None:
        """Begin to watch the market and what is rented; nodes that an earlier controller rented are found again.

        A price is told with the time from which it is charged, also to a controller that hears of it late.
        """
        ...

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """Rent one node. A second call with the same token changes nothing. Raises RentFailed when refused."""
        ...

    async def release(self, node_id: str) -> Billed | None:
        """Give it back; returns when the provider confirms that it is gone and no longer paid for.

        The answer is the provider's own record of it, where it keeps one; None where it does not know whether the node
        was ever there, or until when: then it is charged from our order until now.
        """
        ...

    async def list(self) -> list[RentedNode]:
        """Every node of ours that exists, by any order."""
        ...

    async def close(self) -> None:
        """Stop watching. Rented nodes stay."""
        ...


@runtime_checkable
class Expires(Protocol):
    """An optional part of a provider: it knows when its right to use the cloud ends."""

    def access_left_s(self) -> float | None:
        """Seconds on the wall until then; None = it does not end, renews itself, or is not known."""
        ...


@runtime_checkable
class Contains(Protocol):
    """An optional part of a provider: it knows whether jobs can run in containers on its nodes, before it rents."""

    def no_containers(self) -> str:
        """Why none can; empty where one can, or where it is unknown."""
        ...


class AtWork(Protocol):
    """How far the jobs have come, for a cloud whose market follows them."""

    def share(self) -> float:
        """The share of the work of all jobs that is done; each job counts alike."""
        ...

    def nodes(self) -> Collection[str]:
        """On which jobs train."""
        ...


@runtime_checkable
class FollowsJobs(Protocol):
    """An optional part of a provider: things happen in its market when jobs have come so far."""

    at_work: AtWork | None  # None until a controller says so
