"""A tree that is looked at too late: teams and users pay for what they burn meanwhile, jobs for what they have."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sublet.domain.actions import StopJob
from sublet.domain.budget import Holder, Level, Limit, Period
from sublet.domain.events import (
    PurseSet,
    RentRefused,
    TimerFired,
)
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.plan import Phase
from sublet.domain.timers import CheckPurse
from sublet.errors import UnexpectedEvent
from sublet.kernel.journal import replay
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

NOON = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp())
VISION, ANN, OWN = Holder(Level.TEAM, "vision"), Holder(Level.USER, "ann"), Holder(Level.JOB, "a")
DOLLAR_PER_1000_S = Price.from_usd_per_h("3.6")
WIND_DOWN_S = 10.0


def purse(holder, amount, period=None, at_s=0.0):
    return PurseSet(at_s, holder, Money.from_usd(amount), period, NOON + at_s)


def town(*purses, cap=DOLLAR_PER_1000_S):
    """Ann's job has a node of four GPUs, which costs a dollar per 1000 s."""
    offer = an_offer("o", usd_per_h="3.6", wind_down_s=WIND_DOWN_S, pool="p", cap=cap)
    driver = Driver([offer], limits={"o": Limit(max_nodes=2)})
    driver.submit(a_job("a", work=1e9, gpus=4, user="ann", team="vision"))
    for each in purses:
        driver.tell(each)
    driver.settle(Fifo())
    return driver


def look(driver, at_s):
    driver.tell(TimerFired(at_s, CheckPurse()))


def spent(driver, holder=VISION):
    return Money(driver.kernel.budgets.spent(holder, microseconds(driver.now_s)))


def usd(driver, holder=VISION):
    return pytest.approx(spent(driver, holder).usd, abs=1e-6)


@pytest.mark.parametrize("late_s", [0.001, 5.0, 10.0, 3600.0])
@pytest.mark.parametrize("holder", [VISION, ANN])
def test_a_team_or_a_user_is_over_by_what_is_burned_until_its_jobs_have_left(holder, late_s):
    driver = town(purse(holder, 1))
    look(driver, 1000.0 + late_s)
    assert any(isinstance(order, StopJob) for order in driver.last)
    look(driver, 1000.0 + late_s + 1000.0)  # it stays on, and all pay for that
    assert usd(driver, holder) == 1.0 + (late_s + WIND_DOWN_S) / 1000.0
    assert driver.kernel.ledger.spent(driver.now_s).usd == pytest.approx(1.0 + late_s / 1000.0 + 1.0)


@pytest.mark.parametrize("late_s", [0.001, 5.0, 10.0, 3600.0])
def test_a_job_is_never_charged_a_grain_more_than_its_own_purse(late_s):
    driver = town(purse(OWN, 1))
    driver.ring([CheckPurse()])
    assert driver.now_s == pytest.approx(1000.0 - WIND_DOWN_S, abs=1e-3)  # in time it leaves within it
    driver = town(purse(OWN, 1), purse(VISION, 50))
    look(driver, 1000.0 + late_s)
    assert any(isinstance(order, StopJob) for order in driver.last)
    look(driver, 1000.0 + late_s + 1000.0)
    assert spent(driver, OWN) == Money.from_usd(1)
    assert usd(driver, VISION) == 1.0 + (late_s + WIND_DOWN_S) / 1000.0  # its team pays for what it had


def test_what_a_job_was_not_charged_it_does_not_owe_with_a_larger_purse():
    driver = town(purse(OWN, 1))
    driver.tell(purse(OWN, 2, at_s=5000.0))
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    charged = driver.kernel.budgets.allowed[OWN].opening
    assert Money(charged) == Money.from_usd(4)  # the organisation's
    look(driver, 5100.0)
    assert Money(driver.kernel.budgets.spent(OWN, microseconds(5100.0)) - charged) == Money.from_usd("1.1")
    driver.tell(purse(OWN, 3, at_s=5200.0))  # in time: nothing more is free
    assert driver.kernel.budgets.allowed[OWN].opening == charged


def test_a_purse_at_whose_end_nobody_was_there_is_topped_up_and_the_job_goes_on():
    driver = town(purse(VISION, 1))
    driver.tell(purse(VISION, 2, at_s=1004.0))
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    look(driver, 1500.0)
    assert usd(driver) == 1.5


def test_a_day_that_was_over_meanwhile_has_its_own_money():
    driver = town(purse(VISION, 1, Period.DAY), purse(OWN, 1, Period.DAY))
    day_s = 12 * 3600.0
    look(driver, day_s + 500.0)
    for holder in (VISION, OWN):
        assert Money(driver.kernel.budgets.allowed[holder].opening) == Money.from_usd("43.2")  # until midnight
        assert usd(driver, holder) == 43.2 + 0.5
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING  # there is money again


def test_news_that_cannot_be_tells_nobody_to_leave():
    driver = town(purse(VISION, 1))
    before = driver.kernel.facts()
    with pytest.raises(UnexpectedEvent):
        driver.kernel.handle(RentRefused(5000.0, "n99"))
    assert driver.kernel.facts() == before


def test_a_late_life_replays_the_same():
    driver = town(purse(OWN, 1), purse(ANN, 1, Period.DAY))
    look(driver, 5000.0)
    driver.settle(Fifo())
    assert replay(driver.journal).budgets.facts() == driver.kernel.budgets.facts()
