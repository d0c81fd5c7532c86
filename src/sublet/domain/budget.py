"""What may be spent and held."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.money import Money, Price
from sublet.domain.quantity import whole
from sublet.errors import InvalidValue

__all__ = ["UNLIMITED", "Budget", "Limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A cap on the burn rate (USD per hour at every instant), and a purse (USD in all). None = no limit.

    The purse is a promise: what is spent and what is reserved to give every node up safely never exceed it.
    """

    burn: Price | None = None
    purse: Money | None = None

    def __post_init__(self) -> None:
        if self.purse is not None and self.purse.grains < 0:
            raise InvalidValue("purse", str(self.purse), "at least USD 0")


UNLIMITED = Budget()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many nodes of one offer may be held, and how many are held whatever happens (owned or reserved)."""

    min_nodes: int = 0
    max_nodes: int | None = None  # None = the cloud gives as many as we ask for

    def __post_init__(self) -> None:
        whole("min_nodes", self.min_nodes)
        if self.max_nodes is not None:
            whole("max_nodes", self.max_nodes)
            if self.max_nodes < self.min_nodes:
                raise InvalidValue("max_nodes", self.max_nodes, f"at least min_nodes {self.min_nodes}")
