"""Pools of both markets: what is promised on demand is there, the rest is on spot, and goes back to it."""

from __future__ import annotations

import pytest

from sublet.domain.actions import ReleaseNode, ResizeJob, StartJob
from sublet.domain.budget import Limit
from sublet.domain.events import NodeLost, NodeReady, OffersChanged
from sublet.domain.offer import Market
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.errors import InvalidValue
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

SPOT = an_offer("s", gpus=2, pool="p", usd_per_h="1")
DEMAND = an_offer("d", gpus=2, pool="p", market=Market.ON_DEMAND, usd_per_h="3")


def p(gpus, steady=0):
    return Shape("p", gpus, steady=steady)


def town(hold, shapes, **facts):
    """Nodes as wanted, and jobs of these shapes; all that was ordered has been done."""
    driver = Driver([SPOT, DEMAND], **facts)
    for job_id in shapes:
        driver.submit(a_job(job_id, gpus=4, min_gpus=1, max_gpus=9))
    driver.plan(Plan(hold=hold, shapes=shapes))
    return settled(driver)


def settled(driver):
    while driver.open:
        driver.answer(driver.open[0])
    return driver


def gpus_by_market(driver, job_id="a"):
    nodes, found = driver.kernel.cluster.nodes, {"s": 0, "d": 0}
    for node_id, gpus in driver.kernel.tenancy.placement[job_id]:
        found[nodes[node_id].offer.id] += gpus
    return found


def test_a_steady_part_is_on_demand_and_the_rest_on_spot():
    driver = town({"s": 3, "d": 3}, {"a": p(6, steady=2)})
    assert gpus_by_market(driver) == {"s": 4, "d": 2}
    assert dict(driver.kernel.snapshot().steady) == {"p": 2}
    assert dict(driver.kernel.snapshot().promised) == {"p": 6}


def test_steady_means_at_least_so_many():
    driver = town({"s": 1, "d": 3}, {"a": p(6, steady=1)})
    assert gpus_by_market(driver) == {"s": 2, "d": 4}


def test_a_steady_part_that_is_not_there_yet_is_waited_for_though_spot_has_room():
    driver = town({"s": 3, "d": 0}, {"a": p(4)})
    driver.plan(Plan(hold={"d": 1}, shapes={"a": p(4, steady=2)}))
    assert not any(isinstance(order, ResizeJob) for order in driver.open)
    assert gpus_by_market(settled(driver)) == {"s": 2, "d": 2}


def test_what_spot_lacks_is_not_taken_from_what_another_was_promised_on_demand():
    """Nodes on demand are there before those on spot: who need not be there leaves them to who must."""
    driver = Driver([SPOT, DEMAND])
    driver.submit(*(a_job(job_id, gpus=4, min_gpus=1, max_gpus=9) for job_id in "ab"))
    driver.plan(Plan(hold={"d": 1, "s": 1}, shapes={"a": p(2), "b": p(2, steady=2)}))
    first = sorted(driver.open, key=lambda order: order.offer_id != "d")
    driver.answer(first[0])
    settled(driver)
    assert [gpus_by_market(driver, job_id) for job_id in "ab"] == [{"s": 2, "d": 0}, {"s": 0, "d": 2}]


def test_who_sits_on_demand_without_need_makes_room_for_who_was_promised_it():
    """Spot had nothing when it came; now it has, and the plan holds on to the node on demand, but for another."""
    driver = town({"s": 0, "d": 1}, {"a": p(2)})
    assert gpus_by_market(driver) == {"s": 0, "d": 2}
    driver.submit(a_job("b", gpus=4, min_gpus=1, max_gpus=9))
    driver.plan(Plan(hold={"s": 1, "d": 1}, shapes={"b": p(2, steady=2)}))
    settled(driver)
    assert [gpus_by_market(driver, job_id) for job_id in "ab"] == [{"s": 2, "d": 0}, {"s": 0, "d": 2}]


# ---------------------------------------------------------------------- going back


def lacking_spot():
    """A job of four GPUs, all on demand: spot had nothing. Now two spot nodes are there, and idle."""
    driver = town({"s": 0, "d": 2}, {"a": p(4)})
    driver.plan(Plan(hold={"s": 2}))
    return settled(driver)


def test_who_sits_on_demand_stays_as_long_as_the_plan_holds_it():
    driver = lacking_spot()
    assert gpus_by_market(driver) == {"s": 0, "d": 4}


def test_who_sits_on_demand_beyond_its_steady_part_goes_back_once_the_plan_gives_it_up():
    driver = lacking_spot()
    orders = driver.plan(Plan(hold={"d": 0}))
    assert [type(order) for order in orders if isinstance(order, ResizeJob)] == [ResizeJob]
    settled(driver)
    assert gpus_by_market(driver) == {"s": 4, "d": 0}
    assert driver.kernel.cluster.held["d"] == 0


def test_only_so_many_go_back_as_nodes_are_given_up_and_the_steady_part_stays():
    driver = lacking_spot()
    driver.plan(Plan(hold={"d": 1}))
    assert gpus_by_market(settled(driver)) == {"s": 2, "d": 2}
    driver.plan(Plan(hold={"d": 0}, shapes={"a": p(4, steady=2)}))
    assert gpus_by_market(settled(driver)) == {"s": 2, "d": 2}
    assert driver.kernel.jobs["a"].runs_in == p(4, steady=2)


def test_going_back_waits_for_the_spot_node():
    driver = town({"s": 0, "d": 1}, {"a": p(2)})
    driver.plan(Plan(hold={"s": 1, "d": 0}))
    assert gpus_by_market(driver) == {"s": 0, "d": 2}
    node_id = next(iter(driver.kernel.cluster.requested["s"]))
    orders = driver.tell(NodeReady(driver.now_s, node_id))
    assert any(isinstance(order, ResizeJob) for order in orders)
    assert any(isinstance(order, ReleaseNode) for order in driver.answer(orders[0]))


def test_who_shrinks_leaves_what_the_plan_gives_up():
    for given_up, left in (("d", "s"), ("s", "d")):
        driver = town({"s": 1, "d": 1}, {"a": p(4)})
        before = driver.kernel.jobs["a"].generation
        driver.plan(Plan(hold={given_up: 0}, shapes={"a": p(2)}))
        assert gpus_by_market(settled(driver)) == {left: 2, given_up: 0}
        assert driver.kernel.jobs["a"].generation == before + 1  # in one move
        assert driver.kernel.cluster.held[given_up] == 0


# ---------------------------------------------------------------------- lines


def test_one_that_waits_for_on_demand_leaves_spot_to_those_behind_it():
    driver = town({"s": 1, "d": 1}, {"a": p(2, steady=2)})
    driver.submit(a_job("b", gpus=2), a_job("c", gpus=2), a_job("e", gpus=1))
    driver.plan(Plan(hold={"d": 2, "s": 1}, shapes={"b": p(2, steady=2), "c": p(2), "e": p(1)}))
    starts = [order.job_id for order in driver.open if isinstance(order, StartJob)]
    assert starts == ["c"]  # spot has no more for the last
    driver.plan(Plan(hold={"s": 2}))
    settled(driver)
    assert gpus_by_market(driver, "b") == {"s": 0, "d": 2}
    assert gpus_by_market(driver, "e") == {"s": 1, "d": 0}


def resizes(driver):
    return [order.job_id for order in driver.open if isinstance(order, ResizeJob)]


def test_one_that_waits_for_spot_leaves_what_is_on_demand_to_those_behind_it():
    """It waits for what the other leaves: were it served first and alone, both would wait for ever."""
    driver = town({"s": 2, "d": 1}, {"a": p(2), "b": p(2)})
    driver.plan(Plan(hold={"s": 3}, shapes={"a": p(6), "b": p(2, steady=2)}))
    assert resizes(driver) == ["b"]
    settled(driver)
    assert (gpus_by_market(driver, "a"), gpus_by_market(driver, "b")) == ({"s": 6, "d": 0}, {"s": 0, "d": 2})


def test_nobody_takes_the_spot_gpus_that_one_before_it_waits_for():
    driver = town({"s": 2, "d": 1}, {"a": p(2), "b": p(2, steady=2)})
    driver.plan(Plan(hold={"s": 4}, shapes={"a": p(6), "b": p(4, steady=2)}))
    assert resizes(driver) == []  # there is room for the second, which the first waits for
    settled(driver)
    assert (gpus_by_market(driver, "a"), gpus_by_market(driver, "b")) == ({"s": 6, "d": 0}, {"s": 2, "d": 2})


def test_nobody_takes_the_on_demand_gpus_that_one_before_it_waits_for():
    driver = town({"s": 1, "d": 1}, {})
    driver.submit(a_job("b", gpus=4, min_gpus=1), a_job("c", gpus=3, min_gpus=1))
    driver.plan(Plan(hold={"d": 2, "s": 1}, shapes={"b": p(4, steady=4), "c": p(3)}))
    assert not any(isinstance(order, StartJob) for order in driver.open)  # one of three would be on demand
    driver.plan(Plan(hold={"s": 2}))
    settled(driver)
    assert (gpus_by_market(driver, "b"), gpus_by_market(driver, "c")) == ({"s": 0, "d": 4}, {"s": 3, "d": 0})


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "facts",
    [
        {"limits": {"d": Limit(max_nodes=1)}},
        {"quotas": {"p:on-demand": 3}},
        {"quotas": {"p": 8, "p:on-demand": 2}},
    ],
)
def test_a_steady_part_beyond_what_may_be_had_on_demand_is_refused_before_anything_is_done(facts):
    driver = town({"s": 1}, {"a": p(2)}, **facts)
    driver.submit(a_job("b", gpus=4))
    plan = Plan(hold={"d": 1, "s": 3}, shapes={"a": None, "b": p(4, steady=4)})
    refusal = driver.expect_refusal(plan)
    assert "GPUs on demand in pool p" in str(refusal)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    assert driver.kernel.supply.hold == {"s": 1, "d": 0}


def test_promises_on_demand_add_up_over_jobs():
    driver = town({"s": 1, "d": 2}, {"a": p(2, steady=2)}, limits={"d": Limit(max_nodes=2)})
    driver.submit(a_job("b", gpus=3))
    assert driver.expect_refusal(Plan(hold={"s": 3}, shapes={"b": p(3, steady=3)}))
    driver.plan(Plan(hold={"s": 3}, shapes={"b": p(3, steady=2)}))
    assert gpus_by_market(settled(driver), "b") == {"s": 1, "d": 2}


def test_a_quota_is_of_a_pool_or_of_one_market_of_it():
    driver = town({"s": 1, "d": 1}, {}, quotas={"p": 8, "p:spot": 4})
    assert "quota of pool p on spot" in str(driver.expect_refusal(Plan(hold={"s": 3})))
    assert "quota of pool p" in str(driver.expect_refusal(Plan(hold={"s": 2, "d": 3})))
    driver.plan(Plan(hold={"s": 2, "d": 2}))
    settled(driver)
    driver.tell(OffersChanged(driver.now_s, (SPOT, DEMAND), {}, {"p:on-demand": 2}))
    driver.plan(Plan())
    settled(driver)
    assert (driver.kernel.cluster.held["s"], driver.kernel.cluster.held["d"]) == (2, 1)


@pytest.mark.parametrize("key", ["q", "p:spots", "q:spot", ":spot"])
def test_a_quota_of_nothing_that_is_there_is_refused(key):
    with pytest.raises(InvalidValue, match="quotas"):
        Driver([SPOT, DEMAND], quotas={key: 8})


# ---------------------------------------------------------------------- losses


def test_another_steady_part_is_no_order_where_it_is_on_demand_already():
    driver = town({"s": 1, "d": 1}, {"a": p(4)})
    assert driver.plan(Plan(shapes={"a": p(4, steady=2)})) == []
    assert driver.kernel.jobs["a"].runs_in == p(4, steady=2)


def test_a_lost_on_demand_node_is_wanted_again_though_spot_would_do_for_the_number():
    driver = town({"s": 3, "d": 1}, {"a": p(4, steady=2)})
    (node_id,) = [n for n, _ in driver.kernel.tenancy.placement["a"] if driver.kernel.cluster.nodes[n].offer.id == "d"]
    driver.tell(NodeLost(driver.now_s, node_id))
    assert driver.kernel.supply.hold["d"] == 1
    driver.plan(Plan())
    assert gpus_by_market(settled(driver)) == {"s": 2, "d": 2}


def test_survivors_carry_on_with_what_is_left_of_the_steady_part():
    slow = [an_offer(o.id, gpus=2, pool="p", market=o.market, boot_s=900.0) for o in (SPOT, DEMAND)]
    driver = Driver(slow)
    driver.submit(a_job("a", gpus=4, min_gpus=1))
    driver.plan(Plan(hold={"s": 1, "d": 1}, shapes={"a": p(4, steady=2)}))
    settled(driver)
    (node_id,) = [n for n, _ in driver.kernel.tenancy.placement["a"] if driver.kernel.cluster.nodes[n].offer.id == "s"]
    orders = driver.tell(NodeLost(driver.now_s, node_id))
    (move,) = [order for order in orders if isinstance(order, ResizeJob)]
    assert move.shape == p(2, steady=2)


# ---------------------------------------------------------------------- what is owed


def test_a_share_of_an_on_demand_node_is_left_for_one_that_was_promised_it():
    driver = town({"s": 0, "d": 1}, {"a": p(2, steady=1)})
    assert gpus_by_market(driver) == {"s": 0, "d": 2}  # it has the whole node, and was promised half of it
    driver.submit(a_job("b", gpus=1))
    driver.plan(Plan(hold={"s": 1}, shapes={"b": p(1, steady=1)}))
    settled(driver)
    assert (gpus_by_market(driver), gpus_by_market(driver, "b")) == ({"s": 1, "d": 1}, {"s": 0, "d": 1})
