"""When a plan is called for, which plans are refused, what a policy sees, and what time may do."""

from __future__ import annotations

import json
import math

import pytest

from sublet.domain.actions import MakePlan, RefusePlan, RentNode, SetTimer, StartJob
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    JobFinished,
    JobStarted,
    JobSubmitted,
    NodeReady,
    NodeReleased,
    PlanMade,
    PriceChanged,
    TimerFired,
)
from sublet.domain.money import Money, Price
from sublet.domain.plan import Packing, Plan, arrival
from sublet.domain.shape import Shape
from sublet.domain.timers import PlanAgain
from sublet.errors import InvalidValue, PlanRefused, UnexpectedEvent
from sublet.kernel.kernel import Kernel
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def p(gpus):
    return Shape("p", gpus)


# ---------------------------------------------------------------------- asking for plans


def test_at_most_one_plan_is_asked_for_at_a_time(town):
    assert town.submit(a_job("a")) == [MakePlan()]
    assert town.submit(a_job("b")) == []


def test_a_plan_that_did_not_see_everything_is_followed_by_another(town):
    town.submit(a_job("a"))
    seen = town.kernel.seen
    town.submit(a_job("b"))
    assert town.tell(PlanMade(0.0, Plan(), seen)) == [MakePlan()]
    assert town.tell(PlanMade(0.0, Plan(), town.kernel.seen)) == []


def test_a_third_timer_that_outruns_the_plan_under_way_is_no_news(town):
    """Whoever thinks for longer than it wants to wait: its plan counts in the end, and says when it wants the next."""
    town.plan(Plan(ask_again_s=60.0))
    town.now_s = 50.0
    town.submit(a_job("a"))
    for at_s in (60.0, 70.0):
        seen = town.kernel.seen
        assert town.tell(TimerFired(at_s, PlanAgain())) == []
        assert town.tell(PlanMade(at_s, Plan(ask_again_s=at_s + 10.0), seen))[-1] == MakePlan()  # it was stale
    again = kernel_from_snapshot(json.loads(json.dumps(town.kernel.facts())))
    assert again.handle(TimerFired(80.0, PlanAgain())) == []
    assert again.handle(PlanMade(85.0, Plan(), again.seen - 1)) == []
    seen = town.kernel.seen
    assert town.tell(TimerFired(80.0, PlanAgain())) == []
    assert town.kernel.snapshot().woken
    assert town.tell(PlanMade(85.0, Plan(ask_again_s=90.0), seen)) == [SetTimer(PlanAgain(), 90.0)]
    assert town.tell(TimerFired(90.0, PlanAgain())) == [MakePlan()]


def test_an_empty_plan_changes_nothing(town):
    town.submit(a_job("a"))
    assert town.plan(Plan()) == []
    assert "a" in town.kernel.waiting


def test_a_plan_for_a_job_that_has_ended_meanwhile_is_no_fault(town):
    town.submit(a_job("a", gpus=4))
    town.tell(JobFinished(1.0, "a"))
    assert town.plan(Plan(shapes={"a": p(4)})) == []


def test_a_policy_may_ask_to_be_asked_again(town):
    town.submit(a_job("a"))
    assert town.plan(Plan(ask_again_s=60.0)) == [SetTimer(PlanAgain(), 60.0)]
    assert town.tell(TimerFired(60.0, PlanAgain())) == [MakePlan()]


def test_asking_for_the_same_time_again_sets_no_second_timer(town):
    town.submit(a_job("a"))
    town.plan(Plan(ask_again_s=60.0))
    assert town.plan(Plan(ask_again_s=60.0)) == []
    assert town.plan(Plan(ask_again_s=50.0)) == [SetTimer(PlanAgain(), 50.0)]


def test_a_timer_that_was_set_anew_does_not_call_for_a_plan(town):
    town.submit(a_job("a"))
    town.plan(Plan(ask_again_s=50.0))
    town.plan(Plan(ask_again_s=60.0))
    assert town.tell(TimerFired(50.0, PlanAgain())) == []
    assert town.tell(TimerFired(60.0, PlanAgain())) == [MakePlan()]


def test_a_policy_cannot_stop_the_clock_by_asking_to_be_asked_at_once(town):
    town.submit(a_job("a"))
    (timer,) = town.plan(Plan(ask_again_s=0.0))
    assert timer.at_s > town.now_s


# ---------------------------------------------------------------------- refusing plans


def test_a_fresh_plan_above_capacity_is_refused(town):
    town.submit(a_job("a", gpus=9))
    assert town.expect_refusal(Plan(shapes={"a": p(9)})) == RefusePlan("GPUs in pool p", 9, 8)


def test_promises_made_before_count_too(town):
    town.submit(a_job("a", gpus=4), a_job("b", gpus=8))
    town.plan(Plan(shapes={"a": p(4)}))
    assert town.expect_refusal(Plan(shapes={"b": p(8)})).needed == 12


def test_what_a_plan_takes_from_one_job_it_may_give_to_another(town):
    town.submit(a_job("a", gpus=8), a_job("b", gpus=8))
    town.plan(Plan(shapes={"a": p(8)}))
    town.plan(Plan(shapes={"b": p(8), "a": None}))
    assert town.kernel.tenancy.promises.promised == {"p": 8}


def test_a_stale_plan_above_capacity_is_not_refused_but_replaced(town):
    town.submit(a_job("a", gpus=4))
    seen = town.kernel.seen
    town.tell(AvailabilityChanged(1.0, "o", 0))
    orders = town.tell(PlanMade(2.0, Plan(shapes={"a": p(4)}), seen))
    assert orders == [StartJob("a", 1, p(4), (("n1", 4),)), MakePlan()]


def a_town_of_two_dollars():
    driver = Driver([an_offer("o", pool="p")], budget=Budget(burn=Price.from_usd_per_h("2.5")))
    driver.submit(a_job("a"))
    assert len(driver.plan(Plan(hold={"o": 2}))) == 2
    return driver


def test_a_fresh_plan_above_the_burn_cap_is_refused():
    assert a_town_of_two_dollars().expect_refusal(Plan(hold={"o": 3})) == RefusePlan("USD/h of budget", 3.0, 2.5)


def test_a_stale_plan_above_the_burn_cap_rents_only_what_the_cap_allows():
    driver = Driver([an_offer("o", pool="p")], budget=Budget(burn=Price.from_usd_per_h("2.5")))
    driver.submit(a_job("a"))
    orders = driver.tell(PlanMade(0.0, Plan(hold={"o": 5}), 0))
    assert [o for o in orders if isinstance(o, RentNode)] == [RentNode("n1", "o"), RentNode("n2", "o")]


def test_a_fresh_plan_above_a_quota_is_refused():
    driver = Driver([an_offer("o", pool="p")], quotas={"p": 8})
    driver.submit(a_job("a", gpus=9))
    refusal = driver.expect_refusal(Plan(shapes={"a": p(9)}, hold={"o": 3}))
    assert (refusal.needed, refusal.available) == (9, 8)


def test_nodes_above_a_quota_are_refused_though_no_job_is_promised_them():
    driver = Driver([an_offer("o", pool="p")], quotas={"p": 8})
    driver.submit(a_job("a", gpus=4))
    assert driver.expect_refusal(Plan(shapes={"a": p(4)}, hold={"o": 3})) == RefusePlan("quota of pool p", 12, 8)


def test_no_plan_rents_above_a_quota():
    offers = [an_offer("o", pool="p"), an_offer("z", pool="p")]
    driver = Driver(offers, quotas={"p": 8})
    driver.submit(a_job("a"))
    orders = driver.tell(PlanMade(0.0, Plan(hold={"o": 2, "z": 2}), 0))
    assert len([order for order in orders if isinstance(order, RentNode)]) == 2


def test_owned_nodes_dearer_than_the_burn_cap_are_not_the_fault_of_the_plan(town):
    town.tell(BudgetChanged(1.0, Budget(burn=Price.from_usd_per_h("1.5"))))
    town.submit(a_job("a", gpus=4))
    assert StartJob("a", 1, p(4), (("n1", 4),)) in town.plan(Plan(shapes={"a": p(4)}))


def test_a_plan_for_an_unknown_pool_is_refused_by_name(town):
    town.submit(a_job("a"))
    refusal = town.expect_refusal(Plan(shapes={"a": Shape("elsewhere", 1)}))
    assert refusal == RefusePlan("shapes[a].pool", "elsewhere", "one of p")
    assert isinstance(refusal.error(0.0), InvalidValue)


def test_a_plan_for_an_unknown_offer_is_refused_by_name(town):
    town.submit(a_job("a"))
    refusal = town.expect_refusal(Plan(shapes={"a": p(4)}, hold={"elsewhere": 1}))
    assert refusal == RefusePlan("hold", "elsewhere", "an offer that is there: o")


REFUSED = [
    Plan(shapes={"a": None, "b": p(4), "c": p(9)}, ask_again_s=7.0, warnings={"b": "late"}),
    Plan(shapes={"a": p(2), "b": p(4)}, hold={"elsewhere": 1}),
    Plan(shapes={"a": p(2), "c": Shape("elsewhere", 1)}, packing=Packing.EMPTIEST),
]


@pytest.mark.parametrize("plan", REFUSED, ids=["above a limit", "wrong offer", "wrong pool"])
def test_nothing_of_a_refused_plan_is_done(town, plan):
    town.submit(a_job("a", gpus=4, min_gpus=1), a_job("b", gpus=4), a_job("c", gpus=4))
    town.plan(Plan(shapes={"a": p(4)}))
    town.answer(town.open[-1])
    before = town.kernel.facts()
    town.expect_refusal(plan)
    after = town.kernel.facts()
    assert (after["supply"], after["tenancy"], after["warned"]) == (before["supply"], before["tenancy"], [])


def test_another_plan_is_asked_for_after_a_refusal_ever_later(town):
    town.submit(a_job("a", gpus=9))
    waits = []
    for _ in range(9):
        town.expect_refusal(Plan(shapes={"a": p(9)}))
        at_s = town.timers[PlanAgain()]
        waits.append(at_s - town.now_s)
        assert town.tell(TimerFired(at_s, PlanAgain())) == [MakePlan()]
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 960.0, 960.0]
    town.plan(Plan())  # this one is taken
    town.expect_refusal(Plan(shapes={"a": p(9)}))
    assert town.timers[PlanAgain()] - town.now_s == 10.0


def test_a_plan_that_is_due_sooner_is_not_put_off_by_a_refusal(town):
    town.submit(a_job("a", gpus=9))
    assert town.plan(Plan(ask_again_s=5.0)) == [SetTimer(PlanAgain(), 5.0)]
    town.submit(a_job("b"))
    town.expect_refusal(Plan(shapes={"a": p(9)}))
    assert town.timers[PlanAgain()] == 5.0
    assert town.tell(TimerFired(5.0, PlanAgain())) == [MakePlan()]


def test_whatever_happens_after_a_refusal_calls_for_a_plan_as_ever(town):
    town.submit(a_job("a", gpus=9))
    town.expect_refusal(Plan(shapes={"a": p(9)}))
    assert town.submit(a_job("b", gpus=1)) == [MakePlan()]


def test_a_refused_plan_that_did_not_see_everything_is_followed_by_another(town):
    town.submit(a_job("a"))
    seen = town.kernel.seen
    town.submit(a_job("b"))
    wrong = Plan(shapes={"a": Shape("elsewhere", 1)})
    orders = town.kernel.handle(PlanMade(0.0, wrong, seen))
    assert [type(order) for order in orders] == [RefusePlan, MakePlan]
    town.expect_refusal(wrong)  # this one has seen it all: asked at once, the policy would say the same
    assert [type(order) for order in town.last] == [RefusePlan, SetTimer]


def test_stale_plans_without_end_are_refused_and_call_for_no_other_at_once(town):
    town.now_s = 1.0
    town.submit(a_job("a"))
    for _ in range(1_000):
        assert town.tell(PlanMade(town.now_s, Plan(), 0)) == [MakePlan()]
    orders = town.kernel.handle(PlanMade(town.now_s, Plan(), 0))
    assert [type(order) for order in orders] == [RefusePlan, SetTimer]


def test_a_policy_that_never_comes_to_rest_is_refused_in_the_end(town):
    town.now_s = 1.0
    town.submit(a_job("a"))
    for _ in range(1_000):
        town.tell(PlanMade(town.now_s, Plan(), 0))  # as if it had seen nothing
    assert town.expect_refusal(Plan()) == RefusePlan("plans at one instant", 1_001, 1_000)


def test_a_refusal_says_what_people_are_told():
    assert str(RefusePlan("USD/h of budget", 3.0, 2.5).error(7.0)) == str(
        PlanRefused("USD/h of budget", needed=3.0, available=2.5, now_s=7.0)
    )


# ---------------------------------------------------------------------- what a policy sees


def test_a_snapshot_holds_what_is_known_now():
    driver = Driver(
        [an_offer("o", pool="p", usd_per_h="3.6")],
        limits={"o": Limit(max_nodes=3)},
        budget=Budget(burn=Price.from_usd_per_h("9")),
    )
    driver.submit(a_job("a", gpus=4), a_job("b", gpus=4))
    driver.plan(Plan(shapes={"a": p(4)}, hold={"o": 1}))
    driver.tell(AvailabilityChanged(1000.0, "o", 2))
    snapshot = driver.kernel.snapshot()
    assert (snapshot.now_s, snapshot.seen) == (1000.0, 4)
    assert list(snapshot.active) == ["a"]
    assert [state.job.id for state in snapshot.waiting.by(arrival)] == ["b"]
    assert (snapshot.offers["o"].held, snapshot.offers["o"].most) == (1, 2)
    assert snapshot.promised["p"] == 4
    assert snapshot.spent == Money.from_usd("1")
    assert snapshot.budget.burn == Price.from_usd_per_h("9")


def test_a_frozen_snapshot_is_not_touched_by_later_events(town):
    town.submit(a_job("a", gpus=4), a_job("b", gpus=4))
    frozen, live = town.kernel.snapshot(frozen=True), town.kernel.snapshot()
    town.plan(Plan(shapes={"a": p(4)}))
    town.tell(JobFinished(1.0, "b"))
    assert (list(frozen.active), len(frozen.waiting), frozen.promised["p"]) == ([], 2, 0)
    assert (list(live.active), len(live.waiting)) == (["a"], 0)


def test_a_snapshot_cannot_be_used_to_change_the_kernel(town):
    town.submit(a_job("a", gpus=4))
    with pytest.raises(TypeError):
        town.kernel.snapshot().active["x"] = None


def test_a_plan_from_a_frozen_snapshot_is_good_while_nothing_has_changed(town):
    town.submit(a_job("a", gpus=4))
    frozen = town.kernel.snapshot(frozen=True)
    plan = Fifo().decide(frozen)
    assert town.tell(PlanMade(3.0, plan, frozen.seen)) == [StartJob("a", 1, p(4), (("n1", 4),))]


# ---------------------------------------------------------------------- time


def test_time_may_stand_still_but_not_go_back(town):
    town.submit(a_job("a"))
    town.tell(PriceChanged(5.0, "o", Price(1)))
    town.tell(PriceChanged(5.0, "o", Price(2)))
    with pytest.raises(UnexpectedEvent, match=r"5\.0 s"):
        town.tell(PriceChanged(4.999, "o", Price(3)))
    assert town.kernel.now_s == 5.0
    assert town.kernel.snapshot().offers["o"].price == Price(2)


@pytest.mark.parametrize("at_s", [math.nan, math.inf, -1.0])
def test_an_event_needs_a_time_that_can_be(town, at_s):
    with pytest.raises(UnexpectedEvent):
        town.tell(JobSubmitted(at_s, a_job("a")))
    assert town.kernel.jobs == {}


def test_an_event_from_the_past_is_refused_with_the_story_of_its_job(town):
    town.submit(a_job("a", gpus=4))
    town.plan(Plan(shapes={"a": p(4)}))
    town.tell(BudgetChanged(9.0, UNLIMITED))
    with pytest.raises(UnexpectedEvent) as caught:
        town.tell(JobStarted(8.0, "a", 1, 0.0, 8.0))
    assert [line.partition("(")[0] for line in caught.value.story] == ["JobSubmitted", "StartJob"]


IMPOSSIBLE = [JobSubmitted(9.0, a_job("a")), NodeReady(9.0, "n7"), JobFinished(9.0, "z"), NodeReleased(9.0, "n1")]


@pytest.mark.parametrize("event", IMPOSSIBLE, ids=lambda event: type(event).__name__)
def test_news_that_cannot_be_are_an_error_and_leave_no_trace(town, event):
    town.submit(a_job("a", gpus=4))
    before = town.kernel.facts()
    with pytest.raises(UnexpectedEvent):
        town.kernel.handle(event)
    assert town.kernel.facts() == before


# ---------------------------------------------------------------------- what cannot be rented from


def test_a_kernel_needs_an_offer():
    with pytest.raises(InvalidValue, match="offers"):
        Kernel([])


def test_nodes_of_one_pool_are_alike():
    with pytest.raises(InvalidValue, match="T4 x 4 like the others of pool p"):
        Kernel([an_offer("o", gpus=4, pool="p"), an_offer("b", gpus=8, pool="p")])


def test_an_offer_is_listed_once():
    with pytest.raises(InvalidValue):
        Kernel([an_offer("o", usd_per_h="1"), an_offer("o", usd_per_h="2")])


def test_a_limit_is_for_an_offer_that_is_there():
    with pytest.raises(InvalidValue, match="limits"):
        Kernel([an_offer("o")], limits={"x": Limit(max_nodes=1)})


def test_a_quota_is_for_a_pool_that_is_there_and_a_whole_number():
    for quotas in ({"x": 4}, {"p": -1}, {"p": 1.5}):
        with pytest.raises(InvalidValue, match="quotas"):
            Kernel([an_offer("o", pool="p")], quotas=quotas)


def test_a_quota_is_not_below_what_is_owned():
    with pytest.raises(InvalidValue, match="quota"):
        Kernel([an_offer("o", pool="p")], limits={"o": Limit(min_nodes=2)}, quotas={"p": 7})
