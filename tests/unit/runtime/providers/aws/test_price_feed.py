"""A feed of prices that says nonsense or nothing: set aside with its reason, and nothing is rented on it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from sublet.domain.events import PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import SubletError
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.calls import Calls
from sublet.runtime.providers.aws.offers import STALE_S, SpotPrices
from sublet_lab.walls import WallOf

LIST_USD = 0.3
YEN_PER_USD = 150.0
OFFER = Offer(
    id="spot",
    gpu="T4",
    gpus_per_node=1,
    market=Market.SPOT,
    price=Price.from_usd_per_h(LIST_USD),
    cloud="aws",
    region="us-east-1",
    zone="use1-az1",
    instance_type="g4dn.xlarge",
)
STEADY = Offer(id="dear", gpu="T4", gpus_per_node=1, market=Market.ON_DEMAND, price=Price.from_usd_per_h(0.6))


class Feed:
    """EC2 as far as it is asked here; `price` None = it does not answer."""

    def __init__(self):
        self.price = "0.31"

    def make(self, service, region):
        return self

    def describe_availability_zones(self):
        return {"AvailabilityZones": [{"ZoneName": "us-east-1a", "ZoneId": "use1-az1"}]}

    def describe_spot_price_history(self, **request):
        if self.price is None:
            return {"SpotPriceHistory": []}
        row = {"AvailabilityZone": "us-east-1a", "InstanceType": "g4dn.xlarge", "SpotPrice": self.price}
        return {"SpotPriceHistory": [{**row, "Timestamp": datetime(2026, 1, 1, tzinfo=UTC)}]}


def by_minute(prices):
    """What was told to be believed and why nothing would be rented, after each reading."""
    wall, feed, found = [0.0], Feed(), []

    async def follow():
        follows = SpotPrices(Calls(feed.make), Clock(wall=WallOf(lambda: wall[0])), [OFFER, STEADY])
        assert follows.why_not("spot") == ""  # nobody has looked yet
        for minute, price in enumerate(prices):
            wall[0], feed.price = 60.0 * minute, price
            try:
                changes = await follows.changes()
                told = [change.price.usd_per_h for change in changes if isinstance(change, PriceChanged)]
            except SubletError:
                told = []
            found.append((told, follows.why_not("spot")))
            assert follows.why_not("dear") == ""

    asyncio.run(follow())
    return found


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("0", "not a price"),
        ("0.0000", "not a price"),
        ("-0.31", "not a price"),
        ("NaN", "not a price"),
        ("inf", "not a price"),
        ("", "not a number"),
        ("0,31", "not a number"),
        ("USD 0.31", "not a number"),
        (str(LIST_USD * YEN_PER_USD), "jumped"),  # yen where dollars are meant
        ("0.00001", "outside"),
        ("1000", "outside"),
    ],
)
def test_nonsense_is_set_aside_at_once_and_nothing_is_rented_on_it(said, why):
    (_, before), (told, after), (_, healed) = by_minute(["0.31", said, "0.31"])
    assert before == healed == ""
    assert told == []
    assert why in after


def test_a_price_below_five_times_the_last_reprices_what_is_held_with_the_next_reading():
    found = by_minute(["0.31", "1.5", "0.32"])
    assert [told for told, _ in found] == [[0.31], [1.5], [0.32]]
    assert all(why == "" for _, why in found)


def test_a_feed_that_says_nothing_is_believed_for_a_quarter_of_an_hour():
    silent = int(STALE_S / 60.0)
    found = by_minute(["0.31", *[None] * (silent + 5), "0.33"])
    assert [why == "" for _, why in found[: silent + 1]] == [True] * (silent + 1)
    assert "it was not confirmed for 16 min" in found[silent + 1][1]
    assert found[-1] == ([0.33], "")


def test_a_feed_that_never_spoke_is_trusted_no_longer_than_that():
    silent = int(STALE_S / 60.0)
    assert "it was not confirmed" in by_minute([None] * (silent + 3))[-1][1]
