"""An anchor is paid for while it is there, and not from one controller to the next."""

from __future__ import annotations

import asyncio

import pytest

from sublet.domain.actions import RentNode
from sublet.domain.budget import Budget
from sublet.domain.events import PlanMade
from sublet.domain.money import Money, Price
from sublet.domain.plan import Plan
from sublet.kernel.invariants import check
from sublet.kernel.total import BESIDES_S
from sublet.machine.wall import WALL
from sublet.runtime.clock import Clock
from sublet.runtime.controller.money.bill import said_at_the_end
from sublet.runtime.controller.money.timekeeping import MARK_EVERY_S
from sublet.testing.driver import Driver
from sublet.testing.values import an_offer
from sublet_lab.walls import WallOf
from tests.rigs.story import Story, a_spec, adds_up, phase, trained

pytestmark = pytest.mark.usefixtures("virtual_time")
ANCHOR = Price.from_usd_per_h(60)
PURSE = Money.from_usd(2000)
HERE, THERE = Budget(purse=PURSE), Budget(purse=PURSE, besides=ANCHOR)
AWAY_S = 86_400.0  # of the wall


class Life:
    """Of a state directory whose controllers run on an anchor, and elsewhere."""

    def __init__(self, folder):
        self.extra_s = 0.0
        self.story = Story(folder, speedup=1.0, budget=THERE)
        self.on_machine(certain=True)

    def on_machine(self, *, certain):
        """`certain`: it has been on since the last controller there."""
        began_s = self.story.cloud.clock.now_s()
        wall = WallOf(lambda: WALL.monotonic() + self.extra_s)
        self.story.cloud.clock = Clock(speedup=1.0, began_s=began_s, wall=wall, certain=certain)

    def away(self):
        self.extra_s += AWAY_S


def besides(api):
    """Now, after the laws are looked at."""
    check(api._controller.kernel)
    adds_up(api)
    return api._controller.kernel.ledger.besides(api._controller.now_s()).usd


@pytest.mark.parametrize("works", [False, True])
def test_from_the_end_of_a_controller_to_the_next_nothing_is_paid_for_its_machine(tmp_path, works):
    life = Life(tmp_path)

    async def live():
        async with life.story.controller() as api:
            if works:
                await api.submit(a_spec())
                await trained(api, "j-1", 3)
            await asyncio.sleep(30.0)
            paid = besides(api)
            began_s = api._controller.now_s()
        assert paid >= 0.5
        at_most = paid + (life.story.cloud.clock.now_s() - began_s) * 60 / 3600
        life.away()
        async with life.story.controller() as api:  # again on an anchor
            again = besides(api)
            assert paid <= again <= at_most + 0.1
            if works:
                await phase(api, "j-1", "running")
            await asyncio.sleep(30.0)
            assert besides(api) >= again + 0.5
            assert not (await api.budget())["exhausted"]
        at_most = besides(api)
        life.away()
        life.story.budget = HERE
        async with life.story.controller() as api:
            assert besides(api) <= at_most
            await asyncio.sleep(30.0)
            assert besides(api) <= at_most

    asyncio.run(live())


@pytest.mark.parametrize(("works", "then"), [(False, HERE), (False, THERE), (True, HERE)])
def test_one_that_was_killed_on_another_machine_was_paid_for_until_its_last_sign(tmp_path, works, then):
    life = Life(tmp_path)

    async def live():
        async with life.story.controller(crash=True) as api:
            if works:
                await api.submit(a_spec())
                await trained(api, "j-1", 3)
            await asyncio.sleep(30.0)  # without an event
            paid = besides(api)
        assert paid >= 0.5
        life.away()
        life.on_machine(certain=False)
        life.story.budget = then
        began_s = life.story.cloud.clock.now_s()
        async with life.story.controller() as api:
            started = besides(api)
            since = 0.0 if then is HERE else (api._controller.now_s() - began_s) * 60 / 3600
            assert paid <= started <= paid + 2 * MARK_EVERY_S * 60 / 3600 + since
            await asyncio.sleep(30.0)
            assert besides(api) - started == pytest.approx(0.0 if then is HERE else 0.5, abs=0.05)

    asyncio.run(live())


def test_a_machine_that_stayed_on_without_its_controller_is_paid_for_all_the_time(tmp_path):
    life = Life(tmp_path)

    async def live():
        async with life.story.controller(crash=True) as api:
            paid = besides(api)
        life.away()
        async with life.story.controller() as api:
            assert besides(api) >= paid + AWAY_S * 60 / 3600

    asyncio.run(live())


@pytest.mark.parametrize("wanted", [True, False])
def test_the_money_that_is_free_at_the_end_buys_nothing(wanted):
    offer = an_offer("o")
    purse = Money(offer.reserve.grains + ANCHOR.micro_usd_per_h * int(BESIDES_S * 1e6) - 1)
    driver = Driver([offer], budget=Budget(purse=purse, besides=ANCHOR))
    orders = driver.tell(PlanMade(0.0, Plan(hold={"o": 1}), seen=0))
    assert not any(isinstance(each, RentNode) for each in orders)  # it lacks one grain
    nothing, free = said_at_the_end(driver.kernel, 0.0)
    orders = [*([] if wanted else driver.tell(nothing)), *driver.tell(free)]
    assert any(isinstance(each, RentNode) for each in orders) is wanted
    assert said_at_the_end(driver.kernel, 0.0) == []
