"""What a purse is bound to as its periods pass, and how long money lasts: worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.budget import ORG, Holder, Level, Limit, Period
from sublet.domain.events import PurseSet, TimerFired
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.timers import CheckPurse
from sublet.kernel.allowances import Allowance
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

VISION, OWN = Holder(Level.TEAM, "vision"), Holder(Level.JOB, "a")
HOUR_S, DAY_S = 3600.0, 86_400.0
NOON = 20 * DAY_S + 12 * HOUR_S  # Unix time: twelve hours to the end of the day


def usd(grains):
    return Money(grains).usd


def town(amount, period=Period.DAY, holder=VISION):
    """A job of a team holds a node of 1 USD an hour, which it needs a quarter of an hour to leave."""
    offer = an_offer("o", usd_per_h="1", pool="p", wind_down_s=900.0, cap=Price.from_usd_per_h("1"))
    driver = Driver([offer], limits={"o": Limit(max_nodes=1)})
    driver.submit(a_job("a", work=1e9, gpus=4, team="vision"))
    driver.tell(PurseSet(0.0, holder, Money.from_usd(100), period, NOON))
    driver.settle(Fifo())
    driver.tell(PurseSet(HOUR_S, holder, Money.from_usd(amount), period, NOON + HOUR_S))
    return driver


def allowance(driver):
    return driver.kernel.budgets.allowed[VISION]


@pytest.mark.parametrize(("holder", "kept"), [(VISION, 0.0), (OWN, 0.25)])
def test_of_a_purse_that_is_left_which_is_not_spent_and_of_a_jobs_own_not_kept_back_to_leave(holder, kept):
    tree = town(50, holder=holder).kernel.budgets
    assert usd(tree.left(holder, microseconds(HOUR_S))) == 50.0 - 1.0 - kept
    assert usd(tree.reserved(holder, microseconds(HOUR_S))) == kept


@pytest.mark.parametrize(("amount", "bound"), [(50, 50.0), ("0.5", 1.0)])
def test_a_purse_is_bound_to_its_limit_or_to_what_was_spent_when_it_was_set(amount, bound):
    assert usd(allowance(town(amount)).bound) == bound


def test_with_a_new_period_it_counts_from_what_was_spent_until_then_and_may_spend_again():
    """After twelve hours a day begins."""
    tree = town(50).kernel.budgets
    old = tree.allowed[VISION] = replace(tree.allowed[VISION], spent=True)
    before = tree.now()
    tree.roll(12 * HOUR_S)
    new = tree.allowed[VISION]
    assert (usd(new.opening), usd(new.bound), new.spent) == (12.0, 62.0, False)
    assert new.ends_s == 36 * HOUR_S
    assert tree.next_end_s() == 36 * HOUR_S
    tree.roll(13 * HOUR_S)
    assert tree.allowed[VISION] is new
    tree.roll_back(before)
    assert tree.allowed[VISION] == old


def test_several_periods_may_have_passed_and_the_last_of_them_counts():
    driver = town(50)
    tree = driver.kernel.budgets
    driver.tell(TimerFired(40 * HOUR_S, CheckPurse()))
    assert (usd(tree.allowed[VISION].opening), tree.allowed[VISION].ends_s) == (36.0, 60 * HOUR_S)


def test_another_amount_in_the_same_period_leaves_spent_what_is_spent():
    driver = town(50)
    driver.tell(TimerFired(2 * HOUR_S, CheckPurse()))
    driver.tell(PurseSet(3 * HOUR_S, VISION, Money.from_usd(60), Period.DAY, NOON + 3 * HOUR_S))
    assert (usd(allowance(driver).opening), usd(allowance(driver).limit)) == (0.0, 60.0)
    driver.tell(PurseSet(4 * HOUR_S, VISION, Money.from_usd(60), Period.MONTH, NOON + 4 * HOUR_S))
    assert (usd(allowance(driver).opening), usd(allowance(driver).limit)) == (4.0, 64.0)  # another one begins now
    driver.tell(PurseSet(5 * HOUR_S, VISION, Money.from_usd(60), None, NOON + 5 * HOUR_S))
    assert (usd(allowance(driver).opening), usd(allowance(driver).limit)) == (0.0, 60.0)
    driver.tell(PurseSet(6 * HOUR_S, VISION, None, None, NOON + 6 * HOUR_S))
    assert VISION not in driver.kernel.budgets.allowed


def test_a_purse_without_a_period_has_no_end():
    plain = Allowance(amount=Money.from_usd(3), opening=Money.from_usd(2).grains)
    assert (usd(plain.limit), plain.ends_s) == (5.0, None)
    assert Allowance(amount=Money(), ends=100, unix_0_s=40.0).ends_s == 60.0
    driver = town(50, period=None)
    assert driver.kernel.budgets.next_end_s() is None
    before = dict(driver.kernel.budgets.allowed)
    driver.kernel.budgets.roll(1e9)
    assert driver.kernel.budgets.allowed == before
    driver.tell(PurseSet(2 * HOUR_S, ORG, Money.from_usd(70), None, NOON))
    assert driver.kernel.supply.budget.purse == Money.from_usd(70)
