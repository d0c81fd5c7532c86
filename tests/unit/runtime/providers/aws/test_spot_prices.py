"""Which spot prices are believed: no wild tick, but every move that has held. What is dearer is charged at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.events import BudgetChanged, PriceChanged, PriceDoubted
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Plan
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.calls import Calls
from sublet.runtime.providers.aws.offers import SpotPrices
from sublet.testing.driver import Driver
from sublet_lab.walls import WallOf

OFFER = Offer(
    id="spot",
    gpu="T4",
    gpus_per_node=1,
    market=Market.SPOT,
    price=Price.from_usd_per_h(0.3),
    cloud="aws",
    region="us-east-1",
    zone="use1-az1",
    instance_type="g4dn.xlarge",
)


class OneZone:
    """EC2 as far as it is asked here: one price a minute."""

    def __init__(self, prices):
        self.prices = list(prices)

    def make(self, service, region):
        return self

    def describe_availability_zones(self):
        return {"AvailabilityZones": [{"ZoneName": "us-east-1a", "ZoneId": "use1-az1"}]}

    def describe_spot_price_history(self, **request):
        row = {"AvailabilityZone": "us-east-1a", "InstanceType": "g4dn.xlarge", "SpotPrice": self.prices.pop(0)}
        return {"SpotPriceHistory": [{**row, "Timestamp": datetime(2026, 1, 1, tzinfo=UTC)}]}


def watched(prices):
    """By minute: prices that were told to be believed, and what was doubted."""
    told, _, doubts = heard(prices)
    return told, doubts


def heard(prices):
    """By minute: prices to believe, prices to charge though they are not believed, and what was doubted."""
    wall = [0.0]
    told, charged, doubts = {}, {}, []

    async def watch():
        follows = SpotPrices(Calls(OneZone(prices).make), Clock(wall=WallOf(lambda: wall[0])), [OFFER])
        for minute in range(len(prices)):
            wall[0] = 60.0 * minute
            for change in await follows.changes():
                by_minute = told if isinstance(change, PriceChanged) else charged
                by_minute[minute] = change.price.usd_per_h
            doubts.append(follows.doubts.get("spot", ""))

    asyncio.run(watch())
    return told, charged, doubts


def test_a_move_that_has_held_for_ten_minutes_is_believed():
    told, doubts = watched(["0.31", *["2.9", "3.0"] * 5, "3.0", "3.1"])
    assert told == {0: 0.31, 11: 3.0, 12: 3.1}
    assert [bool(doubt) for doubt in doubts] == [False, *[True] * 10, False, False]
    assert "believed if it holds for 10 minutes" in doubts[1]


def test_the_first_price_is_told_also_where_it_is_that_of_the_list():
    """Who hears it may have another one, of a controller before: it would be charged for ever."""
    assert watched(["0.30", "0.30", "0.31"])[0] == {0: 0.30, 2: 0.31}


def test_a_price_is_told_with_the_time_from_which_it_counts():
    since_unix = datetime(2026, 1, 1, tzinfo=UTC).timestamp()

    async def at_s(now_s, unix_s):
        clock = Clock(began_s=now_s, wall=WallOf(lambda: 0.0))
        follows = SpotPrices(Calls(OneZone(["0.31"]).make), clock, [OFFER], unix_s=lambda: unix_s)
        (change,) = await follows.changes()
        return change.at_s

    assert asyncio.run(at_s(1000.0, since_unix + 400.0)) == 600.0
    assert asyncio.run(at_s(1000.0, since_unix + 4000.0)) == 0.0  # before everything
    assert asyncio.run(at_s(1000.0, since_unix - 2.0)) == 1000.0  # nothing counts from later on


def test_a_single_wild_tick_and_prices_that_jump_about_are_never_believed():
    told, doubts = watched(["0.30", "3.0", "0.30", *["3.0", "30.0"] * 12, "0.32"])
    assert told == {0: 0.3, 2: 0.3, 27: 0.32}  # what was charged meanwhile ends with the doubt
    assert all("jumped" in doubt for doubt in doubts[3:27])
    assert doubts[-1] == ""


def test_what_can_be_no_price_is_not_believed_however_long_it_is_said():
    told, doubts = watched(["0.30", *["0.00001"] * 20])
    assert told == {0: 0.3}
    assert "outside" in doubts[-1]


def test_the_age_of_prices_counts_from_the_last_that_was_believed():
    wall = [0.0]

    async def watch():
        follows = SpotPrices(Calls(OneZone(["0.3", "9", "0.3"]).make), Clock(wall=WallOf(lambda: wall[0])), [OFFER])
        assert follows.age_s() is None
        for at_s, age_s in ((60.0, 0.0), (120.0, 60.0), (180.0, 0.0)):
            wall[0] = at_s
            await follows.changes()
            assert follows.age_s() == age_s

    asyncio.run(watch())


def test_a_jump_upwards_is_charged_with_the_reading_that_says_so():
    told, charged, _ = heard(["0.30", "3.0", "3.0", "3.2", "nan", *["3.2"] * 7])
    assert told == {0: 0.3, 11: 3.2}
    assert charged == {1: 3.0, 3: 3.2}


def test_a_jump_downwards_is_not_charged_before_it_is_believed():
    told, charged, doubts = heard(["3.0", *["3.0"] * 10, "0.3", "0.3", "3.0"])
    assert told == {10: 3.0}
    assert charged == {0: 3.0}
    assert "jumped" in doubts[11]


def test_the_bill_of_a_live_node_is_at_least_that_of_a_cloud_whose_price_jumped():
    """I1: for ten minutes nobody believes the price, and the cloud charges it nevertheless."""
    offer = replace(OFFER, cap=Price.from_usd_per_h(5.0))
    driver = Driver([offer], limits={"spot": Limit(max_nodes=1)})
    driver.tell(BudgetChanged(0.0, UNLIMITED))
    driver.plan(Plan())
    driver.answer(driver.plan(Plan(hold={"spot": 1}))[0])
    wall = [0.0]

    async def live():
        feed = OneZone(["0.30", *["3.0"] * 13])
        follows = SpotPrices(Calls(feed.make), Clock(wall=WallOf(lambda: wall[0])), [offer])
        for minute in range(14):
            wall[0] = 60.0 * minute
            for change in await follows.changes():
                orders = driver.tell(change)
                if isinstance(change, PriceDoubted):
                    assert orders == []  # nobody plans on it
                    assert driver.kernel.snapshot().offers["spot"].price == Price.from_usd_per_h(0.3)
            if minute > 1:
                before, since = Price.from_usd_per_h(0.3), Price.from_usd_per_h(3.0)
                charged = before.over(60_000_000) + since.over((minute - 1) * 60_000_000)
                assert driver.kernel.ledger.spent(60.0 * minute) == charged

    asyncio.run(live())
    assert driver.kernel.snapshot().offers["spot"].price == Price.from_usd_per_h(3.0)
