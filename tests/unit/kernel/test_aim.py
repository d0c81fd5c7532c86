"""What was to be spent by now: every aim for as long as it held, to the grain."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Budget
from sublet.domain.events import BudgetChanged, TimerFired
from sublet.domain.money import GRAINS_PER_USD, Money, Price
from sublet.domain.timers import CheckPurse
from sublet.kernel.invariants import check
from sublet.kernel.journal import header_line, line_from, replay
from sublet.kernel.kernel import Kernel
from sublet.kernel.ledger import Ledger
from sublet.testing.driver import Driver
from sublet.testing.values import an_offer

US = 1_000_000
HOUR_S = 3600.0
OFFER = an_offer("o")

prices = st.integers(0, 10**9).map(Price)
aims = st.one_of(st.none(), prices)
waits = st.sampled_from([0, 1, 333_333, 999_999, 17 * US, 3_600 * US, 86_400 * US])  # microseconds
budgets = st.builds(Budget, burn=aims, average=aims)


def usd(text):
    return Money.from_usd(text)


def per_h(text):
    return Price.from_usd_per_h(text)


def owed(history, now_us):
    """Grains, added up in fractions of dollars: each aim from its beginning to that of the next."""
    total = Fraction(0)
    until = [since_us for since_us, _ in history[1:]] + [now_us]
    for (since_us, aim), next_us in zip(history, until, strict=True):
        if aim is not None:
            total += Fraction(aim.micro_usd_per_h, 10**6) * Fraction(next_us - since_us, 3600 * US)
    grains = total * GRAINS_PER_USD
    assert grains.denominator == 1
    return Money(int(grains))


@given(st.lists(st.tuples(waits, aims), min_size=1, max_size=25), waits)
def test_the_ledger_adds_up_the_aims_to_the_grain(script, later_us):
    ledger, now_us, history = Ledger([OFFER]), 0, []
    for wait_us, aim in script:
        now_us += wait_us
        ledger.follow(Budget(average=aim), now_us / US)
        history.append((now_us, aim))
        assert ledger.allowed(now_us / US) == owed(history, now_us)
    assert ledger.allowed((now_us + later_us) / US) == owed(history, now_us + later_us)


@given(budgets, st.lists(st.tuples(waits, budgets), min_size=1, max_size=15), waits)
def test_the_kernel_allows_what_its_budgets_came_to_since_its_first_event(first, script, later_us):
    driver, now_us = Driver([OFFER], budget=first), script[0][0]
    began_us, history = now_us, []
    for number, (wait_us, budget) in enumerate(script):
        now_us += wait_us if number else 0
        driver.tell(BudgetChanged(now_us / US, budget))
        history.append((now_us, budget.average))
    now_us += later_us
    driver.tell(TimerFired(now_us / US, CheckPurse()))
    seen = driver.kernel.snapshot()
    assert seen.began_s == began_us / US
    if history[-1][1] is None:
        assert seen.allowed is None
    else:
        assert seen.allowed == owed(history, now_us)


def test_a_cap_alone_is_no_aim():
    driver = Driver([OFFER], budget=Budget(burn=per_h("9")))
    driver.tell(TimerFired(0.0, CheckPurse()))
    assert driver.kernel.snapshot().allowed is None


def test_a_budget_counts_from_the_first_event_and_not_from_the_beginning_of_time():
    kernel = Kernel([OFFER], budget=Budget(average=per_h("6")))
    kernel.handle(TimerFired(1e6, CheckPurse()))
    assert kernel.snapshot().allowed == Money()
    kernel.handle(TimerFired(1e6 + 600.0, CheckPurse()))
    assert kernel.snapshot().allowed == usd("1")


def test_a_change_of_budget_takes_nothing_back_and_gives_nothing_in_advance():
    driver = Driver([OFFER], budget=Budget(average=per_h("6")))
    driver.tell(TimerFired(0.0, CheckPurse()))
    driver.tell(BudgetChanged(HOUR_S, Budget(average=per_h("60"))))
    assert driver.kernel.snapshot().allowed == usd("6")
    driver.tell(BudgetChanged(2 * HOUR_S, Budget(average=per_h("0"))))
    assert driver.kernel.snapshot().allowed == usd("66")
    driver.tell(TimerFired(9 * HOUR_S, CheckPurse()))
    assert driver.kernel.snapshot().allowed == usd("66")


def test_the_same_budget_told_again_changes_nothing():
    once, often = (Driver([OFFER], budget=Budget(average=per_h("0.000007"))) for _ in range(2))
    for driver, times in ((once, 1), (often, 50)):
        driver.tell(TimerFired(0.0, CheckPurse()))
        for number in range(times):
            driver.tell(BudgetChanged(number / 3, Budget(average=per_h("0.000007"))))
        driver.tell(TimerFired(100.0, CheckPurse()))
    assert once.kernel.snapshot().allowed == often.kernel.snapshot().allowed


def test_an_aim_is_no_promise_and_stops_nothing():
    driver = Driver([OFFER], budget=Budget(average=Price(0)))
    driver.tell(TimerFired(0.0, CheckPurse()))
    assert driver.kernel.snapshot().allowed == Money()
    check(driver.kernel)


@given(budgets, budgets)
def test_a_journal_keeps_the_aim(first, second):
    kernel = Kernel([OFFER], budget=first)
    events = (TimerFired(1.5, CheckPurse()), BudgetChanged(99.25, second), TimerFired(1000.0, CheckPurse()))
    lines = [header_line([OFFER], {}, first), *(line_from(event, kernel.handle(event)) for event in events)]
    assert replay(lines).snapshot().allowed == kernel.snapshot().allowed
    assert replay(lines).snapshot().budget == kernel.snapshot().budget
