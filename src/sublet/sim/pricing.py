"""Recorded prices laid over a run: what a node cost then, hour by hour, instead of one price for ever."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from sublet.domain.events import PriceChanged
from sublet.domain.offer import Market
from sublet.domain.units import DAY_S
from sublet.errors import InvalidValue
from sublet.market.catalogue import offer_id
from sublet.market.prices import PriceBook, load_p3_prices, load_prices, utc_s
from sublet.sim.simulator import Cloud
from sublet.sim.world import MarketChange

P3_TRACE = "skypilot-v100-2023-02"  # the one trace with prices on its own clock
P3_TYPE = "p3.2xlarge"
A_DAY = "2025-06-01"  # well within the record of most offers


def with_prices_since(cloud: Cloud, since_utc: str, *, first_s: float) -> Cloud:
    """The same cloud at the prices of its offers from `since_utc` on, which is when the first job is submitted."""
    instant = _instant(since_utc)
    books: dict[str, tuple[PriceBook, str]] = {}
    recorded: list[str] = []
    for offer in cloud.offers:
        if offer.cloud == "aws" and offer.instance_type and offer.region:
            book = load_prices(instance_type=offer.instance_type, region=offer.region).rebased(instant)
            if offer.id in book.series:
                recorded.append(f"{_first_day(book, offer.id)} to {_day(book.zero_utc_s + book.end_s)} of {offer.id}")
                if book.price_at(offer.id, 0.0) is not None and book.end_s > 0.0:
                    books[offer.id] = (book, offer.id)
    if not books:
        if not recorded:
            ids = ", ".join(offer.id for offer in cloud.offers)
            raise InvalidValue("--prices-since", since_utc, f"left out: no prices of {ids} are recorded")
        raise InvalidValue("--prices-since", since_utc, f"a day with recorded prices: {', '.join(recorded)}")
    others = [offer.id for offer in cloud.offers if offer.id not in books]
    not_then = f"; not recorded then, and at one price: {', '.join(others)}" if others else ""
    return _laid_over(cloud, books, first_s, f"at recorded prices from {instant} on: {', '.join(books)}{not_then}")


def _instant(text: str) -> str:
    """A day is its first second; anything that is no moment is refused in the words of the command line."""
    instant = text if "T" in text else f"{text}T00:00:00Z"
    try:
        utc_s(instant)
    except InvalidValue:
        raise InvalidValue("--prices-since", text, f"a day such as {A_DAY}, or an instant in UTC") from None
    return instant


def _first_day(book: PriceBook, key: str) -> str:
    """The first that has a price from its first second on."""
    began_s, _ = next(book.changes(key, -math.inf, math.inf))
    return _day(DAY_S * math.ceil((book.zero_utc_s + began_s) / DAY_S))


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).date().isoformat()


def with_p3_prices(cloud: Cloud, zones: Mapping[str, str], *, first_s: float) -> Cloud:
    """The prices that were recorded with the trace of February 2023. `zones` maps its zones to our offers."""
    book = load_p3_prices()
    keys = {zone: offer_id("aws", zone[:-1], zone, P3_TYPE, Market.SPOT) for zone in zones}
    books = {zones[zone]: (book, key) for zone, key in keys.items() if key in book.series}
    return _laid_over(cloud, books, first_s, f"prices in {len(books)} zones follow the record that goes with the trace")


def _laid_over(cloud: Cloud, books: Mapping[str, tuple[PriceBook, str]], first_s: float, note: str) -> Cloud:
    """A stream per offer, merged with what the market does anyway."""

    def prices(our_id: str, book: PriceBook, key: str) -> Iterator[MarketChange]:
        for t_s, price in book.changes(key, 0.0, math.inf):
            yield PriceChanged(first_s + t_s, our_id, price)

    def market() -> Iterator[MarketChange]:
        streams = [prices(our_id, book, key) for our_id, (book, key) in books.items()]
        return heapq.merge(*streams, cloud.market(), key=lambda change: change.at_s)

    ends_s = first_s + min(book.end_s for book, _ in books.values()) if books else None
    return replace(cloud, market=market, notes=(*cloud.notes, note), prices_end_s=ends_s)
