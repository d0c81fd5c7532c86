"""Prices of a node of each offer over time, as the ledger has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from sublet.kernel.kernel import Kernel

__all__ = ["PriceView", "Prices"]

MOST = 1000  # changes of each offer, the newest


class PriceView(TypedDict):
    """One offer."""

    offer_id: str
    market: str
    changes: list[tuple[float, float]]  # from when (cloud seconds), and USD per hour of a node from then on


class Prices:
    """Of one controller; `kernel` is asked for each time, because recovery puts another one in its place."""

    def __init__(self, kernel: Callable[[], Kernel]) -> None:
        self._kernel = kernel

    def list(self) -> list[PriceView]:
        """Of all that is on offer."""
        kernel = self._kernel()
        return [
            {
                "offer_id": offer.id,
                "market": str(offer.market),
                "changes": [
                    (since_us / 1e6, price.usd_per_h) for since_us, price in kernel.ledger.prices[offer.id][-MOST:]
                ],
            }
            for offer in kernel.supply.offers.values()
        ]
