"""A purse: what is spent, with what it takes to give everything up, never exceeds it."""

from __future__ import annotations

import pytest

from sublet.domain.actions import MakePlan, ReleaseNode, TellUser
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import BudgetChanged, JobCancelled, NodeLost, NodeNoticed, PlanMade, TimerFired
from sublet.domain.money import Money, Price
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.domain.timers import CheckPurse
from sublet.kernel.cluster import NodePhase
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

DOLLAR_PER_1000_S = "3.6"


def run(purse, *, cap="3.6", wind_down_s=10.0, nodes=2, jobs=2, watch=None, **physics):
    offer = an_offer(
        "o", usd_per_h=DOLLAR_PER_1000_S, wind_down_s=wind_down_s, cap=Price.from_usd_per_h(cap), minimum_billing_s=0.0
    )
    cloud = Cloud(
        offers=(offer,),
        limits={"o": Limit(max_nodes=nodes)},
        budget=Budget(purse=Money.from_usd(purse)),
        physics=Physics(release_s=wind_down_s, **physics),
    )
    workload = [a_job(f"j{n}", work=1e6, gpus=4) for n in range(jobs)]
    return simulate(workload, Fifo(), cloud, checked=True, watch=watch)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("cap", ["3.6", "7.2", "36"])
@pytest.mark.parametrize("planning_s", [0.0, 300.0])
def test_a_purse_is_not_overspent_however_dear_giving_up_and_however_slow_the_planner(nodes, cap, planning_s):
    spent = run("5", cap=cap, nodes=nodes, jobs=nodes, planning_s=planning_s).record.spend[-1][1]
    assert Money.from_usd("2.5") < spent <= Money.from_usd("5")


def test_one_node_at_its_cap_spends_the_purse_to_the_last_moment():
    done = run("1", nodes=1, jobs=1)  # 1000 seconds, the last ten of them to give it back
    assert done.record.held[-1][0] == pytest.approx(1000.0, abs=1e-3)
    assert done.record.spend[-1][1].usd == pytest.approx(1.0, abs=1e-6)
    assert done.unfinished == ("j0",)


def test_a_purse_that_does_not_cover_giving_a_node_back_rents_none():
    done = run("0.009")  # ten seconds cost a cent
    assert done.record.spend[-1][1] == Money(0)


def test_a_purse_that_is_large_enough_changes_nothing():
    workload = [a_job("a", work=400.0, gpus=4)]
    offer = an_offer("o", usd_per_h=DOLLAR_PER_1000_S)
    free, kept = (
        simulate(workload, Fifo(), Cloud(offers=(offer,), budget=budget), checked=True)
        for budget in (Budget(), Budget(purse=Money.from_usd("100")))
    )
    assert kept.record.jobs["a"].finish_s == free.record.jobs["a"].finish_s == 100.0
    assert kept.record.spend[-1] == free.record.spend[-1]


def test_giving_up_idle_nodes_does_not_end_the_watch_over_the_others():
    small = an_offer("small", gpus=1, usd_per_h="0.5", pool="s", wind_down_s=10.0)
    large = an_offer("large", gpus=8, usd_per_h="4", pool="l", wind_down_s=10.0)
    cloud = Cloud(
        offers=(small, large),
        limits={"small": Limit(max_nodes=8), "large": Limit(max_nodes=1)},
        budget=Budget(purse=Money.from_usd("0.13")),
        physics=Physics(release_s=10.0, round_s=30.0),
    )
    workload = [a_job("a", work=61.0), a_job("b", work=121.0, gpus=2), a_job("c", 45.0, work=113.0, gpus=6, min_gpus=6)]
    run = simulate(workload, Fifo(), cloud, checked=True)  # a and b end shortly before the budget does
    assert run.record.spend[-1][1] <= Money.from_usd("0.13")


def test_the_user_is_told_once_when_the_purse_is_spent():
    told = []
    run("1", watch=lambda event, orders: told.extend((event.at_s, o) for o in orders if isinstance(o, TellUser)))
    ((at_s, word),) = told
    assert "USD 1.00" in word.text
    assert at_s < 1000.0  # one node alone would have lasted so long


def test_what_was_kept_back_for_a_node_that_is_gone_pays_for_the_next():
    cap = Price.from_usd_per_h(DOLLAR_PER_1000_S)
    offer = an_offer("o", usd_per_h=DOLLAR_PER_1000_S, wind_down_s=10.0, cap=cap, minimum_billing_s=0.0)
    driver = Driver([offer], limits={"o": Limit(max_nodes=2)}, budget=Budget(purse=Money.from_usd("0.03")))
    driver.submit(a_job("a", work=900.0, gpus=4))
    driver.settle(Equal())
    (first,) = driver.kernel.cluster.nodes
    driver.tell(NodeNoticed(1.0, first, 121.0))
    driver.settle(Equal())  # it pays for no second node before the first is given back
    (second,) = driver.kernel.cluster.nodes
    assert second != first
    assert driver.kernel.jobs["a"].gpus == 4


def nodes_on_six_cents(count):
    """Each costs a cent in ten seconds, and a cent to give up."""
    cap = Price.from_usd_per_h(DOLLAR_PER_1000_S)
    offer = an_offer("o", usd_per_h=DOLLAR_PER_1000_S, wind_down_s=10.0, cap=cap, minimum_billing_s=0.0)
    driver = Driver([offer], limits={"o": Limit(max_nodes=count)}, budget=Budget(purse=Money.from_usd("0.06")))
    driver.submit(a_job("a", work=900.0, gpus=4 * count))
    driver.settle(Equal())
    assert len(driver.kernel.cluster.nodes) == count
    return driver


def test_whoever_looks_at_the_purse_too_late_gives_all_nodes_up_at_once():
    """Half of them would have been enough in time; now nothing is left to pay for the other half."""
    driver = nodes_on_six_cents(2)
    assert driver.timers.pop(CheckPurse()) < 20.0  # then all that is left is what giving both up may cost
    orders = driver.tell(TimerFired(25.0, CheckPurse()))
    assert [order for order in orders if isinstance(order, TellUser)]
    driver.settle(Equal())
    assert not driver.kernel.cluster.nodes


def test_a_purse_that_is_made_smaller_than_what_is_spent_gives_all_nodes_up():
    driver = nodes_on_six_cents(2)
    driver.tell(BudgetChanged(15.0, Budget(purse=Money.from_usd("0.04"))))
    driver.settle(Equal())
    assert not driver.kernel.cluster.nodes


def test_those_that_are_given_up_in_time_still_pay_for_the_others():
    driver = nodes_on_six_cents(2)
    driver.ring([CheckPurse()])
    assert [node.phase for node in driver.kernel.cluster.nodes.values()].count(NodePhase.READY) == 1


def told_that_it_is_spent(driver, event):
    """Whether the user is; all laws hold after the event."""
    orders = driver.tell(event)
    assert driver.kernel.supply.purse.broke == any(isinstance(order, TellUser) for order in orders)
    return driver.kernel.supply.purse.broke


def test_a_purse_is_spent_where_its_last_node_passed_it_and_is_gone():
    """Nothing is billed any more, so nothing else would say so."""
    driver = nodes_on_six_cents(1)
    (node_id,) = driver.kernel.cluster.nodes
    driver.tell(PlanMade(1.0, Plan(hold={"o": 0}), seen=0))  # whoever is away wants no other in its place
    assert told_that_it_is_spent(driver, NodeLost(61.0, node_id))
    driver.settle(Equal())
    assert not driver.kernel.cluster.nodes
    assert not told_that_it_is_spent(driver, BudgetChanged(62.0, Budget(purse=Money.from_usd("1"))))
    driver.settle(Equal())
    assert driver.kernel.cluster.nodes


def test_a_purse_that_is_made_smaller_than_what_is_spent_is_spent_without_any_node():
    driver = nodes_on_six_cents(2)
    driver.tell(JobCancelled(10.0, "a"))
    driver.settle(Equal())
    assert not driver.kernel.cluster.nodes
    assert not told_that_it_is_spent(driver, BudgetChanged(11.0, Budget(purse=Money.from_usd("0.02"))))
    assert told_that_it_is_spent(driver, BudgetChanged(12.0, Budget(purse=Money.from_usd("0.019"))))


@pytest.mark.parametrize(("gpus", "asks"), [(2, True), (1, False)], ids=["wants more", "has all"])
def test_what_a_node_that_is_gone_cost_an_hour_is_offered_to_whoever_wants_more(gpus, asks):
    driver = Driver([an_offer("o", gpus=1, usd_per_h="1", pool="p")], budget=Budget(burn=Price.from_usd_per_h("2")))
    driver.submit(a_job("a", work=9e9, gpus=gpus))
    driver.plan(Plan(hold={"o": 2}, shapes={"a": Shape("p", 1)}))
    driver.settle(Keep())
    driver.plan(Plan(hold={"o": 1}))
    (order,) = driver.open
    assert isinstance(order, ReleaseNode)
    assert any(isinstance(each, MakePlan) for each in driver.answer(order)) == asks


class Keep:
    def decide(self, snapshot):
        del snapshot
        return Plan(hold={"o": 2})
