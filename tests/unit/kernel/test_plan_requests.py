"""When a plan is called for, told step by step; nobody but the requests themselves is asked."""

from __future__ import annotations

import pytest

from sublet.domain.actions import RefusePlan, SetTimer
from sublet.domain.budget import UNLIMITED, Budget
from sublet.domain.money import Money, Price
from sublet.domain.plan import JobState
from sublet.domain.timers import PlanAgain
from sublet.kernel.requests import PlanRequests, frees_money
from sublet.testing.values import a_job

NO = RefusePlan("pool", 2, 1)


def again(at_s):
    return SetTimer(PlanAgain(), at_s)


def test_after_each_refusal_in_a_row_a_policy_is_asked_twice_as_late_up_to_a_quarter_of_an_hour():
    requests, now_s, waited = PlanRequests(), 0.0, []
    for _ in range(9):
        assert requests.count(now_s) is None
        refusal, timer = requests.refuse(NO, now_s, stale=False)
        assert refusal is NO
        assert requests.put_off
        waited.append(timer.at_s - now_s)
        now_s = timer.at_s
        assert requests.wake(now_s)
        assert not requests.put_off  # nothing is set any more
    assert waited == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 960.0, 960.0]
    requests.take(stale=True)  # one that is taken ends the row, whatever it has seen
    assert requests.refuse(NO, 5000.0, stale=False) == [NO, again(5010.0)]


def test_a_refused_plan_that_did_not_see_everything_is_followed_by_the_next_at_once():
    requests = PlanRequests()
    requests.since = 7
    assert requests.refuse(NO, 0.0, stale=True) == [NO]
    assert (requests.since, requests.put_off) == (7, False)
    assert requests.refuse(NO, 0.0, stale=False) == [NO, again(10.0)]
    assert requests.since == 0


def test_the_timer_of_a_refusal_is_not_set_where_one_rings_before_it():
    requests = PlanRequests()
    assert requests.ask_again(4.0, 0.0) == [again(4.0)]
    assert requests.refuse(NO, 0.0, stale=False) == [NO]
    assert requests.refuse(NO, 4.0, stale=False) == [NO, again(24.0)]  # now it has rung: twice 10 s
    requests = PlanRequests()
    requests.ask_again(10.0, 0.0)
    assert requests.refuse(NO, 0.0, stale=False) == [NO]  # the very same time
    requests = PlanRequests()
    requests.ask_again(11.0, 0.0)
    assert requests.refuse(NO, 0.0, stale=False) == [NO, again(10.0)]


def test_the_same_time_is_set_once_and_no_time_is_now():
    requests = PlanRequests()
    assert requests.ask_again(4.0, 0.0) == [again(4.0)]
    assert requests.ask_again(4.0, 1.0) == []
    assert requests.ask_again(1.0, 1.0) == [again(1.001)]
    assert requests.ask_again(-9.0, 2.0) == [again(2.001)]
    assert requests.ask_again(2.5, 2.0) == [again(2.5)]


def test_a_timer_that_was_set_anew_rings_in_vain():
    requests = PlanRequests()
    assert not requests.wake(0.0)
    requests.ask_again(4.0, 0.0)
    assert not requests.wake(3.9)
    assert not requests.woken
    assert requests.wake(4.0)
    assert requests.woken
    assert not requests.wake(5.0)  # it has rung
    requests.take(stale=True)
    assert requests.woken
    requests.take(stale=False)
    assert not requests.woken


def test_two_timers_may_outrun_a_plan_under_way_and_the_third_does_not():
    requests = PlanRequests()
    requests.is_open = True
    rung = []
    for at_s in (1.0, 2.0, 3.0):
        requests.ask_again(at_s, 0.0)
        rung.append(requests.wake(at_s))
    assert rung == [True, True, False]
    requests.take(stale=False)  # the row ends with a plan that saw everything
    requests.ask_again(4.0, 3.0)
    assert requests.wake(4.0)
    requests.is_open = False  # or where none is under way
    requests.ask_again(5.0, 3.0)
    assert requests.wake(5.0)
    requests.is_open = True
    for at_s in (6.0, 7.0):
        requests.ask_again(at_s, 5.0)
        assert requests.wake(at_s)


def test_the_thousand_and_first_plan_at_one_instant_is_refused_until_the_clock_goes_on():
    requests = PlanRequests()
    for now_s in (0.0, 100.0):
        requests.is_open = True
        assert all(requests.count(now_s) is None for _ in range(1000))
        assert not requests.is_open
        assert requests.count(now_s) == RefusePlan("plans at one instant", 1001, 1000)
        assert requests.refuse(NO, now_s, stale=True)[1:] != []  # stale or not: the clock has to go on
    assert requests.count(101.0) is None


def test_requests_go_on_from_a_snapshot():
    requests = PlanRequests()
    requests.ask_again(50.0, 0.0)
    requests.is_open, requests.since = True, 3
    requests.wake(50.0)
    requests.refuse(NO, 50.0, stale=False)
    twin = PlanRequests()
    twin.restore(requests.facts())
    assert twin.facts() == requests.facts()
    older = {name: fact for name, fact in requests.facts().items() if name not in ("refused", "outrun")}
    twin.restore(older)
    assert twin.refuse(NO, 60.0, stale=False) == [NO, again(70.0)]  # the first in a row
    assert (twin.facts()["refused"], twin.facts()["outrun"]) == (1, 0)


NARROW = JobState(job=a_job(gpus=1, max_gpus=4), seq=0, gpus=1)
WIDEST = JobState(job=a_job(gpus=1, max_gpus=4), seq=0, gpus=4)


@pytest.mark.parametrize(
    ("budget", "active", "waiting", "frees"),
    [
        (UNLIMITED, [NARROW], 1, False),
        (Budget(purse=Money.from_usd(1)), [NARROW], 1, True),
        (Budget(purse=Money.from_usd(1)), [NARROW], 0, False),
        (Budget(burn=Price.from_usd_per_h(1)), [WIDEST], 1, True),
        (Budget(burn=Price.from_usd_per_h(1)), [WIDEST, NARROW], 0, True),
        (Budget(burn=Price.from_usd_per_h(1)), [WIDEST], 0, False),
        (Budget(burn=Price.from_usd_per_h(1), purse=Money.from_usd(1)), [WIDEST], 0, False),
    ],
)
def test_money_is_freed_for_whoever_waits_and_under_a_rate_for_whoever_could_be_wider(budget, active, waiting, frees):
    assert frees_money(budget, active, waiting=waiting) is frees
