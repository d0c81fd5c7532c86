"""The market of AWS: spot prices as they move, which of them to believe, and pools that had nothing for us lately.

A price that jumps: a slip for one tick, a price once it has held. `market.hygiene` sets a price aside that is five
times away from the one before. Some such moves are real, and nothing but time tells them from a slip: one that is asked
again and again for ten minutes is what a node costs now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sublet.domain.events import PriceChanged, PriceDoubted
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import NoAccess
from sublet.market.hygiene import AGREEMENT, FAR_OUT
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.calls import Calls, Refusal
from sublet.runtime.providers.aws.offers import doubt, newest

__all__ = ["Pools", "SpotPrices"]

_HELD_S = 600.0  # ten readings of a price that is asked for every minute; nothing is rented on it meanwhile
LONGEST_S = 1800.0  # a pool that is always refused is tried twice an hour
STALE_S = (
    900.0  # that a price may be without being confirmed, before nothing is rented on it: fifteen readings in a row
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jump:
    """A price far from the one before that is watched, and since when it is asked."""

    usd_per_h: float
    since_s: float


def _after_reading(before_usd_per_h: float, usd_per_h: float, watched: _Jump | None, now_s: float) -> _Jump | None:
    """The jump that is watched after this reading; None = it is believed: no jump, or one that has held.

    A reading that does not agree with the watched one starts the time anew, so a price that jumps about is never
    believed.

    >>> jump = after_reading(0.3, 3.0, None, 0.0)
    >>> after_reading(0.3, 3.1, jump, 599.0) == jump, after_reading(0.3, 3.1, jump, 600.0)
    (True, None)
    """
    if before_usd_per_h / FAR_OUT < usd_per_h < before_usd_per_h * FAR_OUT:
        return None
    agrees = watched is not None and watched.usd_per_h / AGREEMENT < usd_per_h < watched.usd_per_h * AGREEMENT
    if watched is None or not agrees:
        return _Jump(usd_per_h=usd_per_h, since_s=now_s)
    return None if now_s - watched.since_s >= _HELD_S else watched


class Pools:
    """Which offers were refused lately, and until when they are left alone: twice as long each time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[str, tuple[int, float, str]] = {}  # offer -> how often in a row, until when, why

    def wait_s(self, offer_id: str) -> float:
        """How long it is to be left alone still."""
        return self._refusals.get(offer_id, (0, 0.0, ""))[1] - self._clock.now_s()

    def why(self, offer_id: str) -> str:
        """Why it is."""
        return self._refusals[offer_id][2]

    def note_refusal(self, offer_id: str, error: Refusal | NoAccess) -> float:
        """It was refused; how long to leave it alone."""
        times = self._refusals.get(offer_id, (0, 0.0, ""))[0]
        first_s = error.wait_s if isinstance(error, Refusal) else 60.0
        wait_s: float = min(first_s * 2**times, max(LONGEST_S, first_s))
        if wait_s > 0:
            self._refusals[offer_id] = (times + 1, self._clock.now_s() + wait_s, error.why)
        return wait_s

    def note_success(self, offer_id: str) -> None:
        """One was had, or given back."""
        self._refusals.pop(offer_id, None)


class SpotPrices:
    """`doubts` names the offers whose last price is not believed: nothing is rented on it, what runs goes on.

    Running nodes are charged a higher price from its first reading on: the bill would be, if it is true. A jump that
    has held for ten minutes is believed. A price without confirmation for a quarter of an hour is not.
    """

    def __init__(
        self, calls: Calls, clock: Clock, offers: Sequence[Offer], *, unix_s: Callable[[], float] | None = None
    ) -> None:
        self._calls, self._clock, self._unix_s = calls, clock, unix_s or clock.wall.unix
        self._spot = [offer for offer in offers if offer.market is Market.SPOT]
        self._price: dict[str, Price] = {offer.id: offer.price for offer in offers}
        self._zones: dict[str, dict[str, str]] = {}  # region -> name -> id
        self._jumps: dict[str, _Jump] = {}  # by offer
        self._charged: dict[str, Price] = {}  # offer -> a price that is not believed, and was told to be charged
        self._believed_s: dict[str, float] = {}  # offer -> when its price was last heard and believed
        self.doubts: dict[str, str] = {}
        self._asked_s: float | None = None  # when prices were first asked for

    def why_not(self, offer_id: str) -> str:
        """Why nothing should be rented at the price that is known of this offer; empty where it may be."""
        if offer_id in self.doubts or self._asked_s is None or all(offer.id != offer_id for offer in self._spot):
            return self.doubts.get(offer_id, "")
        age_s = self._clock.now_s() - self._believed_s.get(offer_id, self._asked_s)
        return "" if age_s <= STALE_S else f"it was not confirmed for {age_s / 60.0:.0f} min"

    def age_s(self) -> float | None:
        """Since the price of every spot offer was last confirmed; None without spot offers, or before that."""
        if not self._spot or any(offer.id not in self._believed_s for offer in self._spot):
            return None
        return self._clock.now_s() - min(self._believed_s.values())

    async def zone_name(self, region: str, zone_id: str) -> str:
        """This account's name of the zone; names differ between accounts, ids do not."""
        if not zone_id:
            return ""
        for name, known in (await self._zone_ids(region)).items():
            if known == zone_id:
                return name
        raise Refusal("zone", f"this account has no zone {zone_id}", 3600.0)

    async def changes(self) -> list[PriceChanged | PriceDoubted]:
        """The prices that are not what they were, each at the time from which EC2 charges it.

        All of them at the first reading: a listener may have an older one, of the controller before this one.
        """
        if self._asked_s is None:
            self._asked_s = self._clock.now_s()
        changes: list[PriceChanged | PriceDoubted] = []
        for region in sorted({offer.region for offer in self._spot}):
            kinds = sorted({offer.instance_type for offer in self._spot if offer.region == region})
            rows = await self._calls.pages(
                region,
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=kinds,
                ProductDescriptions=["Linux/UNIX"],
                StartTime=datetime.fromtimestamp(self._unix_s(), UTC),  # so that only the prices of now come
            )
            prices = newest(rows, await self._zone_ids(region))
            for offer in self._spot:
                found = prices.get((offer.zone, offer.instance_type))
                if offer.region == region and found is not None:
                    ago_s = max(0.0, self._unix_s() - found[1])
                    changes += self._heard(offer, found[0], max(0.0, self._clock.now_s() - ago_s))
        return changes

    def _heard(self, offer: Offer, text: str, since_s: float) -> list[PriceChanged | PriceDoubted]:
        """The news in a reading."""
        if why := doubt(offer, text):
            self._set_aside(offer, why)
            return []
        price = Price.from_usd_per_h(text)
        if why := self._reason_to_doubt(offer, float(text)):
            self._set_aside(offer, why)
            if price <= self._price[offer.id] or price == self._charged.get(offer.id):
                return []
            self._charged[offer.id] = price
            return [PriceDoubted(since_s, offer.id, price)]
        if self.doubts.pop(offer.id, None):
            _log.warning("the price of %s is believed again: USD %s per hour", offer.id, text)
        first = offer.id not in self._believed_s
        charged = self._charged.pop(offer.id, None)
        changed = first or charged is not None or price != self._price[offer.id]
        self._believed_s[offer.id], self._price[offer.id] = self._clock.now_s(), price
        return [PriceChanged(since_s, offer.id, price)] if changed else []

    def _set_aside(self, offer: Offer, why: str) -> None:
        if offer.id not in self.doubts:
            _log.warning("the price of %s is set aside: %s", offer.id, why)
        self.doubts[offer.id] = why

    def _reason_to_doubt(self, offer: Offer, usd_per_h: float) -> str:
        """Why it is not believed yet; empty when it is."""
        before = self._price[offer.id].usd_per_h
        jump = _after_reading(before, usd_per_h, self._jumps.pop(offer.id, None), self._clock.now_s())
        if jump is None:
            return ""
        self._jumps[offer.id] = jump
        held = f"believed if it holds for {_HELD_S / 60:.0f} minutes"
        return f"it jumped from USD {before:.4g} to {usd_per_h:.4g} per hour; {held}"

    async def _zone_ids(self, region: str) -> dict[str, str]:
        if region not in self._zones:
            answer = await self._calls.call(region, "describe_availability_zones")
            self._zones[region] = {zone["ZoneName"]: zone["ZoneId"] for zone in answer["AvailabilityZones"]}
        return self._zones[region]
