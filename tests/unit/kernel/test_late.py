"""A tree that is looked at too late: nobody beneath the organisation pays for it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sublet.domain.actions import StopJob
from sublet.domain.budget import Limit
from sublet.domain.events import (
    JobFinished,
    JobStopped,
    PriceChanged,
    PurseSet,
    RentRefused,
    TimerFired,
)
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.plan import Phase
from sublet.domain.purses import Holder, Level, Period
from sublet.domain.timers import CheckPurse
from sublet.errors import UnexpectedEvent
from sublet.kernel.journal import replay
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

NOON = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp())
VISION, ANN = Holder(Level.TEAM, "vision"), Holder(Level.USER, "ann")
DOLLAR_PER_1000_S = Price.from_usd_per_h("3.6")
DUE_S, WIND_DOWN_S = 990.0, 10.0  # of a dollar: ten seconds are kept back to leave


def purse(holder, amount, period=None, at_s=0.0):
    return PurseSet(at_s, holder, Money.from_usd(amount), period, NOON + at_s)


def town(*purses, cap=DOLLAR_PER_1000_S):
    """Ann's job has a node of four GPUs, which costs a dollar per 1000 s."""
    offer = an_offer("o", usd_per_h="3.6", wind_down_s=WIND_DOWN_S, pool="p", cap=cap)
    driver = Driver([offer], limits={"o": Limit(max_nodes=2)})
    for each in purses:
        driver.tell(each)
    driver.submit(a_job("a", work=1e9, gpus=4, user="ann", team="vision"))
    driver.settle(Fifo())
    return driver


def look(driver, at_s):
    driver.tell(TimerFired(at_s, CheckPurse()))


def spent(driver, holder=VISION):
    return Money(driver.kernel.purses.spent(holder, microseconds(driver.now_s)))


def usd(driver, holder=VISION):
    return pytest.approx(spent(driver, holder).usd, abs=1e-6)


@pytest.mark.parametrize("late_s", [0.001, 5.0, 10.0, 3600.0, 1e6])
def test_however_late_it_is_woken_no_purse_is_exceeded(late_s):
    driver = town(purse(VISION, 1), purse(ANN, 50))
    look(driver, DUE_S + late_s)  # the laws are looked at after every event
    assert any(isinstance(order, StopJob) for order in driver.last)
    look(driver, DUE_S + late_s + 1000.0)  # it stays on, and all pay for that
    assert usd(driver) == 1.0
    assert spent(driver) <= Money.from_usd(1)
    assert usd(driver, ANN) == 1.0
    assert driver.kernel.ledger.spent(driver.now_s).usd == pytest.approx((DUE_S + late_s) / 1000.0 + 1.0)


def test_it_counts_from_the_instant_of_the_purse_whenever_it_was_looked_at_last():
    driver = town(purse(VISION, 1))
    look(driver, 300.0)
    look(driver, DUE_S - 1.0)
    look(driver, 5000.0)
    assert usd(driver) == 1.0
    assert spent(driver) <= Money.from_usd(1)


def test_who_leaves_within_what_was_kept_back_for_it_has_paid_for_all_of_it():
    driver = town(purse(VISION, 1))
    look(driver, DUE_S + 4.0)
    (stop,) = (order for order in driver.open if isinstance(order, StopJob))
    driver.open.remove(stop)
    driver.tell(JobStopped(DUE_S + 6.0, "a", stop.generation, 1.0))
    assert usd(driver) == 0.996
    assert driver.kernel.jobs["a"].phase is Phase.WAITING


def test_a_purse_at_whose_end_nobody_was_there_is_topped_up_and_the_job_goes_on():
    driver = town(purse(VISION, 1))
    driver.tell(purse(VISION, 2, at_s=DUE_S + 4.0))
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    look(driver, 1500.0)
    assert usd(driver) == 1.5


def test_who_was_away_for_longer_has_that_time_paid_by_all_and_goes_on_where_there_is_money_again():
    driver = town(purse(VISION, 1))
    driver.tell(purse(VISION, 2, at_s=5000.0))
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    assert usd(driver) == 1.0  # until it had to be gone
    look(driver, 5100.0)
    assert usd(driver) == 1.1


def test_a_job_that_ended_meanwhile_was_paid_for_until_it_had_to_be_gone():
    driver = town(purse(VISION, 1))
    driver.tell(JobFinished(5000.0, "a"))
    assert usd(driver) == 1.0


def test_a_price_that_changed_meanwhile_counts_from_when_it_did():
    """The dearest is kept back: four times as much, for ten seconds."""
    driver = town(purse(VISION, 1), cap=Price(4 * DOLLAR_PER_1000_S.micro_usd_per_h))
    driver.tell(PriceChanged(961.0, "o", Price(2 * DOLLAR_PER_1000_S.micro_usd_per_h)))  # due at 960
    assert any(isinstance(order, StopJob) for order in driver.last)
    look(driver, 2000.0)
    assert usd(driver) == 0.961 + 0.018
    assert spent(driver) <= Money.from_usd(1)


def test_a_day_that_was_over_meanwhile_has_its_own_money():
    driver = town(purse(VISION, 1, Period.DAY))
    day_s = 12 * 3600.0
    look(driver, day_s + 1000.0)
    allowance = driver.kernel.purses.allowed[VISION]
    assert Money(allowance.opening).usd == pytest.approx(1.0, abs=1e-6)  # all of the first day
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING  # there is money again
    look(driver, day_s + 1500.0)
    assert usd(driver) == 1.5


def test_two_purses_on_the_way_up_are_spent_and_the_first_of_them_counts():
    driver = town(purse(VISION, 2), purse(ANN, 1))
    look(driver, 5000.0)
    assert (usd(driver, ANN), usd(driver, VISION)) == (1.0, 1.0)


def test_news_that_cannot_be_tells_nobody_to_leave():
    driver = town(purse(VISION, 1))
    before = driver.kernel.facts()
    with pytest.raises(UnexpectedEvent):
        driver.kernel.handle(RentRefused(5000.0, "n99"))
    assert driver.kernel.facts() == before
    assert not driver.kernel.purses.shares.due_us


def test_a_late_life_replays_the_same():
    driver = town(purse(VISION, 1), purse(ANN, 1, Period.DAY))
    look(driver, 5000.0)
    driver.settle(Fifo())
    assert replay(driver.journal).purses.facts() == driver.kernel.purses.facts()
