"""Nodes that come late, are noticed, are lost, are refused, and are given back."""

from __future__ import annotations

import json

import pytest

from sublet.domain.actions import MakePlan, ReleaseNode, RentNode, ResizeJob, SetTimer, StartJob, StopJob
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    NodeLost,
    NodeNoticed,
    NodeReady,
    NodeReleased,
    NodeSlow,
    PlanMade,
    PriceChanged,
    PriceDoubted,
    RentRefused,
    TimerFired,
)
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.domain.timers import CheckPurse, RetryOffer
from sublet.errors import UnexpectedEvent
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def p(gpus):
    return Shape("p", gpus)


def start(town, job):
    town.submit(job)
    (order,) = town.plan(Plan(shapes={job.id: p(job.gpus)}))
    town.answer(order)
    return town


def phase(driver, job_id="a"):
    return driver.kernel.jobs[job_id].phase


def rented(nodes=1, *, offers=None, **facts):
    """A driver that holds `nodes` of offer "o" and nothing on them."""
    driver = Driver(offers or [an_offer("o", pool="p")], **facts)
    driver.tell(BudgetChanged(0.0, facts.get("budget", UNLIMITED)))
    driver.plan(Plan(hold={"o": nodes}))
    for order in list(driver.open):
        driver.answer(order)
    return driver


# ---------------------------------------------------------------------- lost


def test_a_job_that_loses_a_node_stands_still_with_what_survived(town):
    start(town, a_job("a", gpus=8, work=1e6))
    assert town.tell(NodeLost(10.0, "n1")) == [RentNode("n3", "o"), MakePlan()]
    state = town.kernel.jobs["a"]
    assert (state.phase, state.gpus, state.spread) == (Phase.BROKEN, 4, (4,))
    assert state.done_at(1000.0) == state.done


def test_a_broken_job_is_moved_when_a_node_takes_the_place_of_the_lost_one(town):
    start(town, a_job("a", gpus=8))
    town.tell(NodeLost(10.0, "n1"))
    assert town.tell(NodeReady(20.0, "n3")) == [ResizeJob("a", 2, p(8), (("n2", 4), ("n3", 4)))]


def test_a_broken_job_can_be_made_smaller_or_stopped(town):
    start(town, a_job("a", gpus=8))
    town.tell(NodeLost(10.0, "n1"))
    (resize,) = town.plan(Plan(shapes={"a": p(4)}))
    assert resize == ResizeJob("a", 2, p(4), (("n2", 4),))
    town.tell(NodeLost(11.0, "n2"))
    assert town.kernel.jobs["a"].gpus == 0
    assert StopJob("a", 3) in town.plan(Plan(shapes={"a": None}))


def test_a_job_that_loses_a_node_while_it_starts_ignores_the_late_answer(town):
    town.submit(a_job("a", gpus=8))
    (order,) = town.plan(Plan(shapes={"a": p(8)}))
    town.tell(NodeLost(1.0, "n2"))
    assert phase(town) is Phase.BROKEN
    assert town.tell(JobStarted(2.0, "a", order.generation, 0.0, 2.0)) == []
    assert phase(town) is Phase.BROKEN
    assert town.tell(NodeReady(3.0, "n3")) == [ResizeJob("a", 2, p(8), (("n1", 4), ("n3", 4)))]


def test_a_job_that_loses_a_node_while_it_stops_still_stops(town):
    start(town, a_job("a", gpus=8))
    town.plan(Plan(shapes={"a": None}))
    town.tell(NodeLost(10.0, "n1"))
    assert (phase(town), town.kernel.jobs["a"].gpus) == (Phase.STOPPING, 4)
    town.tell(JobStopped(20.0, "a", 2, 77.0))
    state = town.kernel.jobs["a"]
    assert (state.phase, state.done, state.gpus) == (Phase.WAITING, 77.0, 0)
    assert state.gpu_s == 8 * 10.0 + 4 * 10.0


def test_a_job_that_loses_a_node_it_was_leaving_is_moved_to_the_end(town):
    start(town, a_job("a", gpus=8))
    (resize,) = town.plan(Plan(shapes={"a": p(4)}))
    assert resize.placement == (("n2", 4),)
    town.tell(NodeLost(1.0, "n1"))
    town.tell(JobResized(2.0, "a", resize.generation, 0.0, 2.0))  # of the move that the loss broke: too late
    assert phase(town) is not Phase.RUNNING
    moves = [order for order in town.open if isinstance(order, ResizeJob)]
    assert moves[-1] == ResizeJob("a", 3, p(4), (("n2", 4),))
    town.answer(moves[-1])
    assert phase(town) is Phase.RUNNING


def test_gpus_left_in_an_unfinished_move_are_not_forgotten_by_the_next():
    driver = rented(4, offers=[an_offer("o", gpus=1, pool="p")])
    start(driver, a_job("a", gpus=4))
    (resize,) = driver.plan(Plan(shapes={"a": p(2)}))
    leaving = [node for node in ("n1", "n2", "n3", "n4") if node not in dict(resize.placement)]
    driver.tell(NodeLost(1.0, leaving[0]))
    driver.plan(Plan(shapes={"a": p(1)}, hold={"o": 3}))
    while moves := [order for order in driver.open if isinstance(order, ResizeJob)]:
        driver.answer(moves[-1])
        driver.open = [order for order in driver.open if order not in moves]
    assert phase(driver) is Phase.RUNNING
    assert driver.kernel.cluster.free_gpus["p"] == 2  # three nodes are left, one is used


def test_nobody_waits_for_gpus_that_a_broken_job_was_leaving(town):
    start(town, a_job("a", gpus=8))
    town.submit(a_job("b", gpus=2))
    (resize,) = town.plan(Plan(shapes={"b": p(2), "a": p(2)}))  # b needs what a is about to leave
    (kept,) = dict(resize.placement)
    town.tell(NodeLost(1.0, "n1" if kept == "n2" else "n2"))
    town.tell(AvailabilityChanged(1.0, "o", 1))
    town.plan(Plan())
    town.open.remove(resize)  # the loss broke that move
    while moves := [order for order in town.open if isinstance(order, StartJob | ResizeJob)]:
        town.answer(moves[0])
    assert {job_id: phase(town, job_id) for job_id in "ab"} == dict.fromkeys("ab", Phase.RUNNING)


def test_a_job_that_loses_what_it_moves_to_goes_back_to_what_it_was_leaving(town):
    start(town, a_job("a", gpus=8))
    (resize,) = town.plan(Plan(shapes={"a": p(4)}))
    (kept,) = dict(resize.placement)
    town.tell(NodeLost(1.0, kept))
    town.tell(RentRefused(1.0, "n3"))
    town.plan(Plan())
    town.open.remove(resize)
    (again,) = [order for order in town.open if isinstance(order, ResizeJob)]
    assert again.placement == (("n1" if kept == "n2" else "n2", 4),)
    town.answer(again)
    assert phase(town) is Phase.RUNNING


def test_nobody_is_moved_to_the_node_that_was_just_lost(town):
    town.submit(a_job("a", gpus=5))
    (order,) = town.plan(Plan(shapes={"a": p(5)}))
    assert order.placement == (("n1", 4), ("n2", 1))
    town.plan(Plan(shapes={"a": p(3)}))  # in transit: looked at when the answer comes
    town.tell(NodeNoticed(1.0, "n1", 121.0))
    town.tell(NodeLost(1.0, "n2"))  # it had three GPUs free
    town.plan(Plan())
    rented = [order.node_id for order in town.open if isinstance(order, RentNode)]
    town.tell(NodeReady(2.0, rented[0]))
    (again,) = [order for order in town.open if isinstance(order, ResizeJob)]
    assert again.placement == ((rented[0], 3),)


def test_a_job_that_lost_promise_and_node_in_transit_waits_again(town):
    town.submit(a_job("a", gpus=8))
    town.plan(Plan(shapes={"a": p(8)}))
    town.plan(Plan(shapes={"a": None}))  # in transit: nothing is ordered yet
    orders = town.tell(NodeLost(1.0, "n1"))
    stops = [order for order in orders if isinstance(order, StopJob)]
    assert len(stops) == 1
    town.answer(stops[0])
    assert "a" in town.kernel.waiting


def test_two_nodes_lost_at_one_instant_leave_a_job_with_nothing(town):
    start(town, a_job("a", gpus=8))
    town.tell(NodeLost(10.0, "n1"))
    town.tell(NodeLost(10.0, "n2"))
    state = town.kernel.jobs["a"]
    assert (state.phase, state.gpus) == (Phase.BROKEN, 0)
    town.tell(NodeReady(20.0, "n3"))
    assert town.tell(NodeReady(20.0, "n4")) == [ResizeJob("a", 2, p(8), (("n3", 4), ("n4", 4)))]


def test_a_lost_node_is_paid_until_it_was_lost():
    driver = rented(1, offers=[an_offer("o", pool="p", usd_per_h="3.6")])
    driver.tell(NodeLost(1000.0, "n1"))
    assert driver.kernel.ledger.spent(1000.0) == Money.from_usd("1")
    assert driver.kernel.ledger.closed[0].end_us == 1_000_000_000


# ---------------------------------------------------------------------- noticed


def test_a_noticed_node_takes_no_new_work(town):
    town.tell(NodeNoticed(0.0, "n1", 120.0))
    town.submit(a_job("a", gpus=4))
    orders = town.plan(Plan(shapes={"a": p(4)}))
    assert StartJob("a", 1, p(4), (("n2", 4),)) in orders


def test_a_job_on_a_noticed_node_runs_on_until_it_can_move_and_then_the_node_is_given_back(town):
    start(town, a_job("a", gpus=4))
    assert town.tell(NodeNoticed(10.0, "n1", 130.0)) == [RentNode("n3", "o"), MakePlan()]
    assert phase(town) is Phase.RUNNING
    (resize,) = town.plan(Plan())
    assert resize == ResizeJob("a", 2, p(4), (("n2", 4),))
    assert town.answer(resize) == [ReleaseNode("n1")]
    assert town.tell(NodeLost(11.0, "n1"))[-1] == MakePlan()
    assert phase(town) is Phase.RUNNING


def test_a_noticed_job_without_room_waits_for_a_node(town):
    start(town, a_job("a", gpus=8))
    town.tell(NodeNoticed(10.0, "n1", 130.0))
    assert town.plan(Plan()) == []
    assert town.tell(NodeReady(40.0, "n3")) == [ResizeJob("a", 2, p(8), (("n2", 4), ("n3", 4)))]


def test_notice_and_then_loss_breaks_a_job_that_could_not_leave(town):
    start(town, a_job("a", gpus=8))
    town.tell(NodeNoticed(10.0, "n1", 130.0))
    town.plan(Plan())
    town.tell(NodeLost(130.0, "n1"))
    assert phase(town) is Phase.BROKEN


def test_a_node_that_was_noticed_and_then_lost_is_one_loss():
    driver = rented(1, offers=[an_offer("o", pool="p", market=Market.SPOT, hazard_per_h=0.5)])
    start(driver, a_job("a", gpus=4))
    for event in (NodeNoticed(10.0, "n1", 10.0), NodeLost(10.0, "n1")):
        driver.tell(event)
        assert driver.kernel.snapshot().offers["o"].lost == 1.0


def test_an_idle_noticed_node_is_given_back_at_once_and_a_second_notice_is_no_news():
    driver = rented(1)
    orders = driver.tell(NodeNoticed(5.0, "n1", 125.0))
    assert orders[0] == ReleaseNode("n1")
    driver.plan(Plan(hold={"o": 0}))
    assert driver.tell(NodeNoticed(6.0, "n1", 125.0)) == []


def test_a_node_noticed_while_it_boots_is_given_back_and_never_used():
    driver = Driver([an_offer("o", pool="p")])
    driver.submit(a_job("a", gpus=4))
    driver.plan(Plan(shapes={"a": p(4)}, hold={"o": 1}))
    orders = driver.tell(NodeNoticed(5.0, "n1", 125.0))
    assert orders == [ReleaseNode("n1"), RentNode("n2", "o"), MakePlan()]
    assert driver.tell(NodeReady(6.0, "n1")) == []
    assert phase(driver) is Phase.WAITING


# ---------------------------------------------------------------------- refused


def test_a_refusal_counts_as_sold_out_until_a_timer_says_try_again():
    driver = rented(1)
    driver.submit(a_job("a", gpus=8))
    driver.plan(Plan(shapes={"a": p(8)}, hold={"o": 2}))
    orders = driver.tell(RentRefused(10.0, "n2"))
    assert orders == [SetTimer(RetryOffer("o"), 70.0), MakePlan()]
    assert driver.kernel.snapshot().offers["o"].available == 1
    assert driver.tell(PlanMade(10.0, Plan(hold={"o": 2}), 0)) == [MakePlan()]  # wanted, but not asked for again
    driver.plan(Plan(shapes={"a": None}, hold={"o": 1}))
    assert driver.tell(TimerFired(70.0, RetryOffer("o"))) == [MakePlan()]
    assert driver.kernel.snapshot().offers["o"].available is None
    assert driver.plan(Plan(shapes={"a": p(8)}, hold={"o": 2})) == [RentNode("n3", "o")]


def refused_again(driver):
    """Asked for one node once more, and refused; seconds until it is asked for again."""
    (rent,) = [order for order in driver.plan(Plan(hold={"o": 1})) if isinstance(order, RentNode)]
    (timer,) = [o for o in driver.tell(RentRefused(driver.now_s, rent.node_id)) if isinstance(o, SetTimer)]
    driver.plan(Plan(hold={"o": 0}))
    return timer.at_s - driver.now_s


def test_an_offer_that_is_refused_again_and_again_is_asked_for_ever_less_often():
    driver, waits_s = rented(0), []
    for _ in range(7):
        waits_s.append(refused_again(driver))
        driver.ring([RetryOffer("o")])
    assert waits_s == [60.0, 120.0, 240.0, 480.0, 960.0, 960.0, 960.0]
    assert driver.kernel.snapshot().offers["o"].refused == 7


@pytest.mark.parametrize("told", ["a node is had", "the market tells"])
def test_good_news_end_a_row_of_refusals(told):
    driver = rented(0)
    for _ in range(3):
        refused_again(driver)
        driver.ring([RetryOffer("o")])
    if told == "the market tells":
        driver.tell(AvailabilityChanged(driver.now_s, "o", 4))
    else:
        (rent,) = driver.plan(Plan(hold={"o": 1}))
        assert driver.kernel.snapshot().offers["o"].coming == 1
        driver.tell(NodeReady(driver.now_s, rent.node_id))
        driver.plan(Plan(hold={"o": 0}))
        driver.tell(NodeReleased(driver.now_s, rent.node_id))
    assert driver.kernel.snapshot().offers["o"].refused == 0
    assert refused_again(driver) == 60.0


def test_another_price_is_a_reason_to_ask_again_and_no_good_news():
    driver = rented(0)
    refused_again(driver)
    assert driver.kernel.snapshot().offers["o"].most == 0
    driver.tell(PriceChanged(5.0, "o", Price.from_usd_per_h("0.9")))
    assert driver.kernel.snapshot().offers["o"].available is None
    assert refused_again(driver) == 120.0


def test_nodes_that_were_asked_for_together_are_refused_once():
    driver = rented(0)
    for node in driver.plan(Plan(hold={"o": 4})):
        orders = driver.tell(RentRefused(5.0, node.node_id))
        assert SetTimer(RetryOffer("o"), 65.0) in orders
    assert driver.kernel.snapshot().offers["o"].refused == 1


def test_a_refused_node_costs_nothing():
    driver = rented(0)
    driver.plan(Plan(hold={"o": 1}))
    driver.tell(RentRefused(100.0, "n1"))
    assert driver.kernel.ledger.spent(100.0) == Money(0)


def test_news_from_the_market_end_being_sold_out():
    driver = rented(0)
    driver.plan(Plan(hold={"o": 2}))
    driver.tell(RentRefused(1.0, "n1"))
    driver.tell(RentRefused(1.0, "n2"))
    assert driver.kernel.snapshot().offers["o"].most == 0
    assert driver.tell(AvailabilityChanged(2.0, "o", 1)) == [RentNode("n3", "o")]  # a plan is open already
    assert driver.kernel.snapshot().offers["o"].most == 1


def test_a_node_given_back_after_a_refusal_ends_being_sold_out():
    driver = rented(1)
    driver.tell(AvailabilityChanged(1.0, "o", 1))
    driver.plan(Plan(hold={"o": 0}))  # n1 is on its way out, and still counts for the cloud
    driver.submit(a_job("a", gpus=4))
    driver.plan(Plan(shapes={"a": p(4)}, hold={"o": 1}))
    driver.tell(RentRefused(2.0, "n2"))
    driver.plan(Plan(shapes={"a": None}, hold={"o": 0}))
    assert MakePlan() in driver.tell(NodeReleased(3.0, "n1"))
    assert driver.kernel.snapshot().offers["o"].most == 1


# ---------------------------------------------------------------------- given back, rented


def test_nothing_is_rented_above_the_burn_cap_so_what_goes_goes_first():
    offers = [an_offer("o", pool="p"), an_offer("b", pool="q")]
    driver = rented(1, offers=offers, budget=Budget(burn=Price.from_usd_per_h("1.5")))
    assert driver.plan(Plan(hold={"o": 0, "b": 1})) == [ReleaseNode("n1")]
    assert driver.kernel.ledger.burn() == Price.from_usd_per_h("1")
    assert driver.tell(NodeReleased(30.0, "n1")) == [RentNode("n2", "b")]


def test_a_raised_budget_rents_what_could_not_be_afforded():
    driver = rented(1, budget=Budget(burn=Price.from_usd_per_h("1")))
    driver.submit(a_job("a", gpus=8))
    assert driver.tell(PlanMade(0.0, Plan(hold={"o": 2}), 0)) == [MakePlan()]  # it saw nothing, and wishes too much
    assert driver.tell(BudgetChanged(5.0, Budget(burn=Price.from_usd_per_h("2")))) == [RentNode("n2", "o")]


def test_a_lowered_budget_calls_for_a_plan_and_rents_nothing():
    driver = rented(2)
    assert driver.tell(BudgetChanged(5.0, Budget(burn=Price.from_usd_per_h("1")))) == [MakePlan()]
    assert driver.plan(Plan(hold={"o": 1})) == [ReleaseNode("n2")]


def test_a_node_that_boots_is_given_back_before_one_that_is_ready():
    driver = rented(1)
    driver.plan(Plan(hold={"o": 2}))
    assert driver.plan(Plan(hold={"o": 1})) == [ReleaseNode("n2")]
    assert driver.tell(NodeReady(1.0, "n2")) == []
    assert driver.kernel.cluster.free_gpus["p"] == 4


def test_a_node_in_use_is_given_back_only_when_its_job_has_left():
    driver = rented(1)
    start(driver, a_job("a", gpus=4))
    assert driver.plan(Plan(shapes={"a": None}, hold={"o": 0})) == [StopJob("a", 2)]
    orders = driver.answer(driver.open[0])
    assert ReleaseNode("n1") in orders


def test_owned_nodes_are_held_whatever_a_plan_says(town):
    assert town.plan(Plan(hold={"o": 0})) == []
    assert town.kernel.snapshot().offers["o"].held == 2


def test_never_more_nodes_are_held_than_the_limit_and_the_market_allow():
    driver = rented(0, limits={"o": Limit(max_nodes=3)})
    assert len(driver.plan(Plan(hold={"o": 9}))) == 3
    driver = rented(0)
    driver.tell(AvailabilityChanged(1.0, "o", 2))
    assert len(driver.plan(Plan(hold={"o": 9}))) == 2


def test_a_given_back_node_is_paid_until_it_is_gone():
    driver = rented(1, offers=[an_offer("o", pool="p", usd_per_h="3.6")])
    driver.now_s = 500.0
    driver.plan(Plan(hold={"o": 0}))
    driver.tell(NodeReleased(1000.0, "n1"))
    assert driver.kernel.ledger.spent(2000.0) == Money.from_usd("1")


# ---------------------------------------------------------------------- the market


def test_a_price_change_is_billed_from_its_instant_and_calls_for_a_plan():
    driver = rented(1, offers=[an_offer("o", pool="p", usd_per_h="3.6")])
    assert driver.tell(PriceChanged(1000.0, "o", Price.from_usd_per_h("7.2"))) == [MakePlan()]
    assert driver.kernel.snapshot().offers["o"].price == Price.from_usd_per_h("7.2")
    assert driver.kernel.ledger.spent(2000.0) == Money.from_usd("3")


def test_a_price_in_doubt_is_charged_from_its_instant_and_no_plan_is_made_on_it():
    driver = rented(1, offers=[an_offer("o", pool="p", usd_per_h="3.6", cap=Price.from_usd_per_h("36"))])
    assert driver.tell(PriceDoubted(1000.0, "o", Price.from_usd_per_h("36"))) == []
    assert driver.kernel.snapshot().offers["o"].price == Price.from_usd_per_h("3.6")
    assert driver.kernel.ledger.spent(2000.0) == Money.from_usd("11")
    driver.tell(PriceDoubted(2000.0, "o", Price.from_usd_per_h("0.36")))  # the worse of it and of what is believed
    assert driver.kernel.ledger.spent(3000.0) == Money.from_usd("12")
    restored = kernel_from_snapshot(json.loads(json.dumps(driver.kernel.facts())))
    assert restored.snapshot().offers["o"].price == Price.from_usd_per_h("3.6")
    assert driver.tell(PriceChanged(3000.0, "o", Price.from_usd_per_h("36"))) == [MakePlan()]
    assert driver.kernel.snapshot().offers["o"].price == Price.from_usd_per_h("36")


def test_no_price_in_doubt_is_charged_beyond_what_the_cloud_may_charge():
    driver = rented(1, offers=[an_offer("o", pool="p", usd_per_h="3.6", cap=Price.from_usd_per_h("7.2"))])
    driver.tell(PriceDoubted(1000.0, "o", Price.from_usd_per_h("360")))
    assert driver.kernel.ledger.spent(2000.0) == Money.from_usd("3")
    assert driver.kernel.snapshot().offers["o"].most > 1  # it could be had, as far as is believed


def test_a_purse_lasts_as_long_as_it_would_at_a_price_in_doubt():
    budget = Budget(purse=Money.from_usd("10"))
    offers = [an_offer("o", pool="p", usd_per_h="3.6", cap=Price.from_usd_per_h("36"))]
    driver = rented(1, offers=offers, budget=budget)
    (timer,) = driver.tell(PriceDoubted(1000.0, "o", Price.from_usd_per_h("36")))
    assert timer.timer == CheckPurse()
    assert timer.at_s == pytest.approx(1900.0)


def test_availability_is_what_the_market_said_last():
    driver = rented(1)
    for nodes in (0, 5, None):
        driver.tell(AvailabilityChanged(1.0, "o", nodes))
        assert driver.kernel.snapshot().offers["o"].available == nodes
    assert "n1" in driver.kernel.cluster.nodes  # only a loss takes a node


# ---------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    "event",
    [
        NodeReady(1.0, "n9"),
        NodeNoticed(1.0, "n9", 2.0),
        NodeLost(1.0, "n9"),
        NodeReleased(1.0, "n9"),
        RentRefused(1.0, "n9"),
    ],
)
def test_nothing_happens_to_a_node_that_is_not_there(town, event):
    with pytest.raises(UnexpectedEvent, match="no such node") as caught:
        town.tell(event)
    assert caught.value.event == event


@pytest.mark.parametrize("event", [PriceChanged(1.0, "x", Price(1)), AvailabilityChanged(1.0, "x", 1)])
def test_the_market_does_not_speak_of_offers_that_are_not_there(town, event):
    with pytest.raises(UnexpectedEvent, match="no such offer"):
        town.tell(event)


def test_a_node_is_gone_only_after_it_was_given_back(town):
    with pytest.raises(UnexpectedEvent, match="not being given back"):
        town.tell(NodeReleased(1.0, "n1"))


def test_a_node_that_is_ready_cannot_be_refused(town):
    start(town, a_job("a", gpus=4))
    with pytest.raises(UnexpectedEvent):
        town.tell(RentRefused(1.0, "n1"))


def test_a_lost_node_cannot_be_lost_again(town):
    town.tell(NodeLost(1.0, "n1"))
    with pytest.raises(UnexpectedEvent):
        town.tell(NodeLost(1.0, "n1"))


def test_the_story_of_a_job_tells_of_its_lost_node(town):
    start(town, a_job("a", gpus=8))
    town.tell(NodeLost(1.0, "n1"))
    assert [line.partition("(")[0] for line in town.kernel.story("a")] == [
        "JobSubmitted",
        "StartJob",
        "JobStarted",
        "NodeLost",
    ]
    town.tell(JobFinished(2.0, "a"))
    assert town.kernel.story("a") == []


def test_a_half_empty_node_is_cleared_when_the_budget_needs_its_money():
    offers = [an_offer("o", pool="p", usd_per_h="4"), an_offer("z", pool="q", usd_per_h="4")]
    limits = {"o": Limit(max_nodes=2), "z": Limit(max_nodes=1)}
    driver = Driver(offers, limits=limits, budget=Budget(burn=Price.from_usd_per_h("10")))
    wide = [a_job(name, gpus=3, min_gpus=3) for name in ("x", "y")]
    driver.submit(a_job("a"), wide[0], a_job("b"), wide[1])
    driver.settle(Fifo())
    for job in wide:  # what is left is one GPU of each node
        driver.tell(JobFinished(10.0, job.id))
    driver.tell(PriceChanged(10.0, "o", Price.from_usd_per_h("6")))
    driver.submit(a_job("c", gpus=4, min_gpus=4))
    driver.settle(Fifo())
    assert {job_id: phase(driver, job_id) for job_id in "abc"} == dict.fromkeys("abc", Phase.RUNNING)
    assert driver.kernel.ledger.burn() == Price.from_usd_per_h("10")  # one node of each


def test_a_slow_node_is_left_for_another_while_its_job_trains_on():
    driver = Driver([an_offer("o", gpus=4, pool="p")], limits={"o": Limit(max_nodes=2)})
    driver.tell(BudgetChanged(0.0, UNLIMITED))
    driver.plan(Plan())
    driver.submit(a_job(gpus=4))
    (rent,) = driver.plan(Plan(shapes={"a": p(4)}, hold={"o": 1}))
    driver.answer(driver.answer(rent)[0])
    seen = driver.kernel.snapshot().offers["o"]

    driver.now_s = 100.0
    orders = driver.tell(NodeSlow(100.0, "n1", "it limps"))
    assert orders == [RentNode("n2", "o"), MakePlan()]
    assert phase(driver) is Phase.RUNNING
    assert driver.kernel.snapshot().offers["o"].lost == seen.lost  # the cloud took nothing
    driver.plan(Plan())
    (move,) = driver.answer(RentNode("n2", "o"))
    assert move == ResizeJob("a", move.generation, p(4), (("n2", 4),))
    assert driver.answer(move) == [ReleaseNode("n1")]
    assert driver.tell(NodeSlow(100.0, "n1")) == []  # it goes already
