"""What the kernel keeps of what the market said, and what it makes of a fall that was announced."""

from __future__ import annotations

import pytest

from sublet.domain.actions import MakePlan, ReleaseNode, RentNode, SetTimer
from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed, OffersChanged, PriceChanged, TimerFired
from sublet.domain.money import Price
from sublet.domain.plan import Plan
from sublet.domain.timers import FallDue
from sublet.kernel.market_memory import REMEMBERED_S, MarketMemory
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.testing.driver import Driver
from sublet.testing.values import an_offer


def held(nodes, supply):
    """A driver that holds `nodes` of offer "o", of which the market has `supply`."""
    driver = Driver([an_offer("o", pool="p")])
    driver.tell(AvailabilityChanged(0.0, "o", supply))
    driver.plan(Plan(hold={"o": nodes}))
    for order in list(driver.open):
        driver.answer(order)
    return driver


def state(driver):
    return driver.kernel.snapshot().offers["o"]


def test_a_policy_sees_the_changes_of_the_last_day_and_what_was_in_force_when_it_began():
    driver = Driver([an_offer("o")])
    times = [0.0, 10.0, REMEMBERED_S, REMEMBERED_S + 20.0]
    for nodes, at_s in enumerate(times):
        driver.tell(AvailabilityChanged(at_s, "o", nodes))
        driver.tell(PriceChanged(at_s, "o", Price(1_000_000 + nodes)))
    assert state(driver).capacity == ((10.0, 1), (REMEMBERED_S, 2), (REMEMBERED_S + 20.0, 3))
    assert [at_s for at_s, _ in state(driver).prices] == [10.0, REMEMBERED_S, REMEMBERED_S + 20.0]
    assert state(driver).prices[-1][1] == state(driver).price


def test_the_last_word_of_an_instant_counts_and_a_word_that_changes_nothing_is_no_change():
    memory = MarketMemory()
    for at_s, nodes in ((0.0, 3), (5.0, 4), (5.0, 2), (9.0, 2), (11.0, None)):
        memory.stock("o", nodes, at_s)
    assert memory.capacity["o"] == ((0.0, 3), (5.0, 2), (11.0, None))


def test_a_snapshot_points_to_the_same_history_until_the_market_changes():
    driver = held(1, 3)
    before = state(driver).capacity
    driver.plan(Plan())
    assert state(driver).capacity is before


def test_what_was_announced_is_not_rented_again_though_the_noticed_node_was_given_back():
    driver = held(3, 3)
    orders = driver.tell(NodeNoticed(10.0, "n1", 130.0))
    assert [type(order) for order in orders if not isinstance(order, MakePlan)] == [ReleaseNode, SetTimer]
    driver.answer(orders[0])
    assert (state(driver).available, state(driver).falls) == (2, ((130.0, 1),))
    assert not any(isinstance(order, RentNode) for order in driver.plan(Plan(hold={"o": 3})))


def test_when_it_has_fallen_the_market_says_what_is_there():
    driver = held(3, 3)
    driver.tell(NodeNoticed(10.0, "n1", 130.0))
    driver.tell(AvailabilityChanged(60.0, "o", 5))  # before the fall, which is still to come
    assert state(driver).available == 4
    driver.tell(AvailabilityChanged(130.0, "o", 4))
    assert (state(driver).available, state(driver).falls) == (4, ())


def test_a_node_that_is_taken_early_is_not_counted_twice():
    driver = held(3, 3)
    driver.tell(NodeNoticed(10.0, "n1", 130.0))
    driver.tell(AvailabilityChanged(20.0, "o", 2))
    driver.tell(NodeLost(20.0, "n1"))
    assert state(driver).available == 2


def test_a_fall_of_which_the_market_says_nothing_is_forgotten_when_it_is_due():
    driver = held(3, 3)
    orders = driver.tell(NodeNoticed(10.0, "n1", 130.0))
    assert SetTimer(FallDue(), 130.0) in orders
    driver.answer(orders[0])
    driver.plan(Plan())
    assert MakePlan() in driver.tell(TimerFired(130.0, FallDue()))
    assert (state(driver).available, state(driver).falls) == (3, ())


def test_the_timer_says_nothing_where_the_market_has_spoken():
    driver = held(3, 3)
    driver.tell(NodeNoticed(10.0, "n1", 130.0))
    driver.tell(AvailabilityChanged(130.0, "o", 2))
    driver.plan(Plan())
    assert driver.tell(TimerFired(130.0, FallDue())) == []


def test_the_later_of_two_falls_gets_a_timer_when_the_first_is_over():
    driver = held(3, 3)
    driver.tell(NodeNoticed(10.0, "n1", 130.0))
    assert SetTimer(FallDue(), 140.0) not in driver.tell(NodeNoticed(20.0, "n2", 140.0))
    assert SetTimer(FallDue(), 140.0) in driver.tell(TimerFired(130.0, FallDue()))
    assert state(driver).falls == ((140.0, 1),)


@pytest.mark.parametrize("lost_s", [float("inf"), float("nan")])
def test_a_notice_that_does_not_say_when_announces_no_fall(lost_s):
    driver = held(3, 3)
    driver.tell(NodeNoticed(10.0, "n1", lost_s))
    assert state(driver).falls == ()


def test_where_supply_has_no_end_a_fall_is_told_and_takes_nothing_away():
    driver = held(2, None)
    orders = driver.tell(NodeNoticed(10.0, "n1", 130.0))
    assert (state(driver).available, state(driver).falls) == (None, ((130.0, 1),))
    assert not any(isinstance(order, SetTimer) for order in orders)
    driver.tell(AvailabilityChanged(20.0, "o", 4))
    assert state(driver).available == 3


def test_an_offer_that_goes_is_forgotten():
    driver = held(0, 3)
    driver.tell(OffersChanged(10.0, (an_offer("d", pool="q"),)))
    assert driver.kernel.supply.offering.memory.capacity == {}


def test_a_kernel_from_a_snapshot_remembers_the_same():
    driver = held(3, 3)
    driver.tell(PriceChanged(5.0, "o", Price(2_000_000)))
    driver.tell(NodeNoticed(10.0, "n1", 130.0))
    again = kernel_from_snapshot(driver.kernel.facts())
    assert again.snapshot().offers == driver.kernel.snapshot().offers
    assert again.handle(AvailabilityChanged(20.0, "o", 9)) == driver.kernel.handle(AvailabilityChanged(20.0, "o", 9))


def test_a_day_is_remembered():
    memory = MarketMemory()
    for at_s, nodes in ((0.0, 1), (10.0, 2), (86_405.0, 3), (86_410.0, 4)):
        memory.stock("o", nodes, at_s)
    assert memory.capacity["o"] == ((10.0, 2), (86_405.0, 3), (86_410.0, 4))  # the second was in force a day ago


def test_one_is_woken_for_the_first_fall_that_counts_and_once():
    memory = MarketMemory()
    assert memory.wake(lambda _: True) is None
    memory.announce("a", "n1", 50.0)
    memory.announce("b", "n2", 40.0)
    memory.announce("b", "n3", 30.0)
    assert memory.wake(lambda _: False) is None
    assert memory.wake(lambda offer_id: offer_id == "a") == 50.0
    assert memory.wake(lambda offer_id: offer_id == "a") is None  # it is known
    assert memory.wake(lambda _: True) == 30.0  # one that is sooner
    assert memory.wake(lambda _: True) is None
    assert memory.falls("b") == ((30.0, 1), (40.0, 1))
    assert memory.pass_by(30.0)
    assert (memory.falling("b"), memory.falling("a")) == (1, 1)
    assert not memory.pass_by(39.0)
    assert memory.wake(lambda _: True) == 40.0
    memory.stock("b", 3, 40.0)  # the market has spoken
    assert (memory.falling("b"), memory.falls("b")) == (0, ())
    memory.taken("a", "n1")
    assert memory.wake(lambda _: True) is None
