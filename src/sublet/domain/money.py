"""Money without rounding.

A price is a whole number of micro-dollars per hour and a duration a whole number of microseconds, so the cost of a
lease is a product of integers. The bill of a month adds up to the same grain whichever way it is summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from sublet.domain.quantity import whole
from sublet.errors import InvalidValue

MICRO_USD_PER_USD = 1_000_000
MICROSECONDS_PER_HOUR = 3_600_000_000
MOST_DIGITS = 15  # of an amount that could be meant: beyond this a field is something else than money
GRAINS_PER_USD = MICRO_USD_PER_USD * MICROSECONDS_PER_HOUR  # one grain = one micro-dollar per hour, for a microsecond


def microseconds(seconds: float) -> int:
    """An instant or a duration on the ledger's clock."""
    return round(seconds * 1_000_000)


@dataclass(frozen=True, slots=True, order=True)
class Money:
    """An exact amount, possibly negative (a difference)."""

    grains: int = 0

    @classmethod
    def from_usd(cls, usd: str | float | Decimal) -> Money:
        """`Money.from_usd("1.25")`; a float is read as the shortest decimal that prints like it."""
        return cls(int(_decimal("usd", usd) * GRAINS_PER_USD))

    @property
    def usd(self) -> float:
        """For people and plots; never add these up."""
        return self.grains / GRAINS_PER_USD

    def __add__(self, other: Money) -> Money:
        return Money(self.grains + other.grains)

    def __sub__(self, other: Money) -> Money:
        return Money(self.grains - other.grains)

    def __str__(self) -> str:
        return f"USD {self.usd:,.2f}"


@dataclass(frozen=True, slots=True, order=True)
class Price:
    """The rent of one node for one hour."""

    micro_usd_per_h: int

    def __post_init__(self) -> None:
        whole("price (micro-USD per hour)", self.micro_usd_per_h)

    @classmethod
    def from_usd_per_h(cls, usd_per_h: str | float | Decimal) -> Price:
        """`Price.from_usd_per_h("3.912")`; finer than a micro-dollar is rounded to it."""
        amount = _decimal("price_usd_per_h", usd_per_h)
        if amount < 0:
            raise InvalidValue("price_usd_per_h", usd_per_h, "a finite number of at least 0")
        return cls(round(amount * MICRO_USD_PER_USD))

    @property
    def usd_per_h(self) -> float:
        """For arithmetic that ends in a decision, not in a bill."""
        return self.micro_usd_per_h / MICRO_USD_PER_USD

    def over(self, duration_us: int) -> Money:
        """The exact cost of `duration_us` at this price."""
        return Money(self.micro_usd_per_h * duration_us)


def _decimal(field: str, value: str | float | Decimal) -> Decimal:
    try:
        amount = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        raise InvalidValue(field, value, "a decimal number such as 3.912") from None
    if not amount.is_finite() or amount.adjusted() > MOST_DIGITS:
        raise InvalidValue(field, value, f"a finite number below 1e{MOST_DIGITS}")
    return amount
