"""What is paid whether nodes are held or not, as for an anchor: to the grain, and out of the same purse."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.actions import SetTimer, TellUser
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import BudgetChanged, TimerFired
from sublet.domain.money import Money, Price
from sublet.domain.timers import CheckPurse
from sublet.kernel.cluster import Cluster
from sublet.kernel.journal import header_line, line_from, replay
from sublet.kernel.kernel import Kernel
from sublet.kernel.ledger import Ledger
from sublet.kernel.total import BESIDES_S, TotalBudget, begin_to_end
from sublet.policies.fifo import Fifo
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

US = 1_000_000
HOUR_S = 3600.0
OFFER = an_offer("o")
ANCHOR = Price.from_usd_per_h("0.02")

prices = st.integers(0, 10**9).map(Price)
waits = st.sampled_from([0, 1, 333_333, 17 * US, 3_600 * US, 86_400 * US])  # microseconds


def usd(text):
    return Money.from_usd(text)


@given(st.lists(st.tuples(waits, prices), min_size=1, max_size=20))
def test_every_price_counts_for_as_long_as_it_held_to_the_grain(script):
    ledger, now_us, owed, price = Ledger([OFFER]), 0, 0, 0
    for wait_us, after in script:
        now_us, owed = now_us + wait_us, owed + price * wait_us
        ledger.follow(Budget(besides=after), now_us / US)
        price = after.micro_usd_per_h
        assert ledger.besides(now_us / US) == ledger.spent(now_us / US) == Money(owed)
        assert (ledger.burn(), ledger.outflow()) == (Price(0), after)
        again = Ledger([OFFER])
        again.restore(json.loads(json.dumps(ledger.facts())))
        assert again.spent(now_us / US + 5.0) == ledger.spent(now_us / US + 5.0)


def test_a_purse_pays_for_it_too_and_is_spent_in_time_to_end_it():
    driver = Driver([OFFER], budget=Budget(purse=usd("1"), besides=ANCHOR))
    orders = driver.tell(TimerFired(0.0, CheckPurse()))
    (timer,) = [order for order in orders if isinstance(order, SetTimer) and order.timer == CheckPurse()]
    assert timer.at_s == pytest.approx(50 * HOUR_S - BESIDES_S, abs=1.0)  # 50 hours at 2 cents
    told = [order for order in driver.tell(TimerFired(timer.at_s, CheckPurse())) if isinstance(order, TellUser)]
    assert len(told) == 1
    assert driver.kernel.supply.purse.broke
    left = usd("1") - driver.kernel.ledger.spent(timer.at_s + BESIDES_S)
    assert Money() <= left < usd("0.001")


def test_a_node_is_not_rented_with_the_money_that_ending_the_rest_needs():
    reserve = OFFER.reserve
    for more, rented in ((-1, False), (10**12, True)):
        grains = reserve.grains + ANCHOR.micro_usd_per_h * int(BESIDES_S * US) + more
        driver = Driver([OFFER], budget=Budget(purse=Money(grains), besides=ANCHOR))
        driver.tell(TimerFired(0.0, CheckPurse()))
        assert driver.kernel.supply.purse.pays_for_one_more(OFFER, 0.0) is rented


def test_a_journal_and_a_change_of_the_budget_keep_it():
    first, second = Budget(besides=ANCHOR), Budget(burn=Price(7), besides=Price(11))
    kernel = Kernel([OFFER], budget=first)
    events = (TimerFired(1.5, CheckPurse()), BudgetChanged(99.25, second), TimerFired(1000.0, CheckPurse()))
    lines = [header_line([OFFER], {}, first), *(line_from(event, kernel.handle(event)) for event in events)]
    assert replay(lines).ledger.besides(2000.0) == kernel.ledger.besides(2000.0) > Money()
    assert replay(lines).supply.budget == second


def test_a_budget_is_shown_as_ever():
    assert "besides" not in repr(Budget(besides=ANCHOR))  # stores know the budget that they began with by this text


@pytest.mark.parametrize("nodes", [1, 3, 8])
def test_nodes_and_what_is_paid_besides_them_do_not_overspend_a_purse(nodes):
    offer = an_offer("o", usd_per_h="3.6", wind_down_s=10.0, minimum_billing_s=0.0)
    cloud = Cloud(
        offers=(offer,),
        limits={"o": Limit(max_nodes=nodes)},
        budget=Budget(purse=usd("5"), besides=Price.from_usd_per_h("1.8")),
        physics=Physics(release_s=10.0),
    )
    done = simulate([a_job(f"j{n}", work=1e6, gpus=4) for n in range(nodes)], Fifo(), cloud, checked=True)
    spent = done.record.spend[-1][1]
    assert usd("4") < spent + Money(int(1.8e6 * BESIDES_S * US)) <= usd("5")


def test_what_is_kept_back_lasts_until_the_slowest_node_can_be_gone_and_then_to_end_the_rest():
    slow = an_offer("slow", wind_down_s=100.0)
    cluster = Cluster()
    purse = TotalBudget(Budget(purse=usd("5"), besides=ANCHOR), cluster, Ledger([OFFER, slow]))
    for name, offer in (("n1", OFFER), ("n2", slow)):
        cluster.add(name, offer)
    nodes = OFFER.reserve.grains + slow.reserve.grains
    per_us = ANCHOR.micro_usd_per_h
    assert purse.reserved(0.0) == Money(nodes + per_us * int((100.0 + BESIDES_S) * US))
    for node in cluster.nodes.values():
        begin_to_end(node, 0.0)
    left = OFFER.ending(max(0.0, OFFER.wind_down_s - 40.0)).grains + slow.ending(60.0).grains
    assert purse.reserved(40.0) == Money(left + per_us * int((60.0 + BESIDES_S) * US))
