"""Limits on spending and holding."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.domain.money import Money, Price
from sublet.domain.quantity import at_least, whole
from sublet.errors import InvalidValue

__all__ = ["UNLIMITED", "Budget", "Limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A cap on the burn rate at every instant, what to spend per hour in the long run, and a budget. None = no limit.

    `burn` and `purse` are promises, kept by the kernel: what is spent and what is reserved to give every node up safely
    never exceed the budget. `average` is an aim, for policies that weigh time against money; `until_s` is how long the
    budget is to last. `besides` is what an hour costs whether nodes are held or not, as of a controller host: it is
    paid out of the same budget.
    """

    burn: Price | None = None
    average: Price | None = None
    purse: Money | None = None
    until_s: float | None = None
    besides: Price = field(default=Price(0), repr=False)  # stores remember a budget by how it is shown

    def __post_init__(self) -> None:
        if self.purse is not None and self.purse.grains < 0:
            raise InvalidValue("purse", str(self.purse), "at least USD 0")
        if self.until_s is not None:
            if self.purse is None:
                raise InvalidValue("until_s", self.until_s, "only beside a total budget")
            at_least("until_s", self.until_s, 0.0)


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
