"""Purses in a tree: what is spent at every level, with what it takes to leave, never exceeds any of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from sublet.domain.actions import MakePlan, SetTimer, StopJob, TellUser
from sublet.domain.budget import ORG, Budget, Holder, Level, Limit, Period
from sublet.domain.events import (
    BudgetChanged,
    JobFinished,
    JobSubmitted,
    PriceChanged,
    PurseSet,
    RentRefused,
    TimerFired,
)
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.domain.timers import CheckPurse, PeriodOver
from sublet.errors import InvalidValue, UnexpectedEvent
from sublet.kernel.following import Follower
from sublet.kernel.journal import replay, steps_from
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.policies.fifo import Fifo
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

NOON = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp())  # a Monday, and the last day of a month
VISION, SPEECH, ANN, BOB, OWN = (
    Holder(Level.TEAM, "vision"),
    Holder(Level.TEAM, "speech"),
    Holder(Level.USER, "ann"),
    Holder(Level.USER, "bob"),
    Holder(Level.JOB, "a"),
)
DOLLAR_PER_1000_S = "3.6"


def usd(amount):
    return Money.from_usd(amount)


def purse(holder, amount, period=None, at_s=0.0):
    return PurseSet(at_s, holder, None if amount is None else usd(amount), period, NOON + at_s)


def an_hour(wind_down_s=10.0, **fields):
    """A node of four GPUs for a dollar per 1000 s, that never costs more."""
    cap = Price.from_usd_per_h(DOLLAR_PER_1000_S)
    return an_offer("o", usd_per_h=DOLLAR_PER_1000_S, wind_down_s=wind_down_s, pool="p", **{"cap": cap, **fields})


def town(*purses, nodes=2, budget=Budget(), **offer):  # noqa: B008 - a value
    driver = Driver([an_hour(**offer)], limits={"o": Limit(max_nodes=nodes)}, budget=budget)
    for each in purses:
        driver.tell(each)
    return driver


def of(user, team, job_id, **fields):
    return a_job(job_id, work=1e9, user=user, team=team, **fields)


def spent(driver, holder):
    return Money(driver.kernel.budgets.spent(holder, microseconds(driver.now_s)))


def ring(driver, *timers):
    driver.ring([timer for timer in timers if timer in driver.timers])


# ---------------------------------------------------------------------- who pays for what


def test_a_job_pays_for_the_gpus_that_it_holds_and_all_pay_for_what_nobody_does():
    driver = town(purse(VISION, 100))
    driver.submit(of("ann", "vision", "a", gpus=1), of("bob", "vision", "b", gpus=2))
    driver.settle(Fifo())
    driver.tell(PriceChanged(1000.0, "o", Price.from_usd_per_h("1.8")))
    driver.tell(TimerFired(2000.0, CheckPurse()))
    assert spent(driver, ANN) == usd("0.375")  # a quarter of a dollar, then of half a dollar
    assert spent(driver, BOB) == usd("0.75")
    assert spent(driver, VISION) == usd("1.125")
    assert driver.kernel.ledger.spent(2000.0) == usd("1.5")


def test_a_job_that_grows_or_shrinks_on_a_node_pays_for_each_width_as_long_as_it_had_it():
    driver = town(purse(VISION, 100))
    driver.submit(of("ann", "vision", "a", gpus=2, min_gpus=1, max_gpus=4))
    for at_s, gpus in ((0.0, 2), (1000.0, 3), (3000.0, 1), (4000.0, 1)):
        driver.tell(PriceChanged(at_s, "o", Price.from_usd_per_h(DOLLAR_PER_1000_S)))  # what it was
        driver.plan(Plan(shapes={"a": Shape(pool="p", gpus=gpus)}, hold={"o": 1}))
        while orders := [order for order in driver.open if not isinstance(order, MakePlan)]:
            driver.answer(orders[0])
    assert spent(driver, ANN) == usd("0.5") + usd("1.5") + usd("0.25")


def test_a_job_that_runs_is_shown_as_wide_as_its_purse_can_pay_for_beyond_what_it_has():
    driver = town()
    driver.submit(of("ann", "vision", "a", gpus=2, min_gpus=1, max_gpus=4))
    driver.tell(purse(OWN, "0.016"))
    driver.plan(Plan(shapes={"a": Shape(pool="p", gpus=2)}, hold={"o": 1}))
    driver.answer(driver.open[0])
    driver.answer(driver.open[0])
    assert driver.kernel.snapshot().active["a"].job.max_gpus == 3  # half a cent for each
    driver.tell(purse(OWN, "0.0101"))
    assert driver.kernel.snapshot().active["a"].job.max_gpus == 2


def test_what_was_spent_before_the_first_purse_is_nobodys():
    driver = town()
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    driver.tell(purse(VISION, 100, at_s=500.0))
    driver.tell(TimerFired(1500.0, CheckPurse()))
    assert spent(driver, VISION) == usd("1")


def test_a_job_that_stays_on_when_it_was_told_to_leave_is_paid_by_all():
    driver = town(purse(VISION, 1))
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    ring(driver, CheckPurse())
    assert any(isinstance(order, StopJob) for order in driver.open)
    assert driver.now_s == pytest.approx(1000.0, abs=1e-3)
    driver.tell(PriceChanged(5000.0, "o", Price.from_usd_per_h("3.6")))  # nobody stops
    assert spent(driver, VISION).usd == pytest.approx(1.01, abs=1e-6)  # it had ten seconds to leave
    assert driver.kernel.ledger.spent(5000.0) == usd("5")


def test_no_purse_pays_more_than_the_cap():
    driver = town(purse(VISION, 100))
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    driver.tell(PriceChanged(0.0, "o", Price.from_usd_per_h("36")))
    driver.tell(TimerFired(100.0, CheckPurse()))
    assert spent(driver, VISION) == usd("0.1")


# ---------------------------------------------------------------------- how it ends


def test_one_team_runs_out_and_the_other_goes_on():
    driver = town(purse(VISION, 1), purse(SPEECH, 100), nodes=4)
    driver.submit(of("ann", "vision", "a", gpus=4), of("bob", "speech", "b", gpus=4))
    driver.settle(Fifo())
    ring(driver, CheckPurse())
    told = [order.text for order in driver.last if isinstance(order, TellUser)]
    driver.settle(Fifo())
    assert told == ["team vision has spent its USD 1.00 in all: its jobs stop, and go on when it is given more"]
    assert driver.kernel.jobs["a"].phase is Phase.WAITING
    assert driver.kernel.jobs["b"].phase is Phase.RUNNING
    assert len(driver.kernel.cluster.nodes) == 1  # the node of the first was given back
    driver.tell(purse(VISION, 2, at_s=5000.0))
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING


def test_a_user_runs_out_within_a_team_that_does_not():
    driver = town(purse(VISION, 100), purse(ANN, 1), nodes=4)
    driver.submit(of("ann", "vision", "a", gpus=4), of("bob", "vision", "b", gpus=4))
    driver.settle(Fifo())
    ring(driver, CheckPurse())
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.WAITING
    assert driver.kernel.jobs["b"].phase is Phase.RUNNING


def test_a_job_has_a_purse_of_its_own_that_ends_with_it():
    driver = town(nodes=4)
    driver.submit(of("", "", "a", gpus=4), of("", "", "b", gpus=4))
    driver.tell(purse(OWN, 1))
    driver.settle(Fifo())
    ring(driver, CheckPurse())
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.WAITING
    assert driver.kernel.jobs["b"].phase is Phase.RUNNING
    driver.tell(JobFinished(driver.now_s, "b"))
    driver.tell(JobFinished(driver.now_s, "a"))
    assert OWN not in driver.kernel.budgets.allowed


@pytest.mark.parametrize("holder", [VISION, ANN])
def test_all_jobs_of_a_purse_that_is_spent_leave(holder):
    """What comes after the last cent is what they burn until they have left."""
    driver = town(purse(holder, 4), nodes=5, wind_down_s=100.0)
    driver.submit(*[of("ann", "vision", f"j{at}", gpus=4) for at in range(4)])
    driver.settle(Fifo())
    ring(driver, CheckPurse())
    assert driver.now_s == pytest.approx(1000.0, abs=1e-3)
    assert {state.phase for state in driver.kernel.jobs.values()} == {Phase.STOPPING}
    driver.tell(TimerFired(5000.0, CheckPurse()))
    assert spent(driver, holder).usd == pytest.approx(4.4, abs=1e-6)
    assert driver.kernel.budgets.allowed[holder].spent


def test_nothing_is_rented_for_a_purse_that_is_spent_whatever_a_plan_says():
    driver = town(purse(VISION, 1), nodes=5)
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    ring(driver, CheckPurse())
    driver.settle(Fifo())
    driver.submit(of("ann", "vision", "late", gpus=4))
    assert not driver.kernel.snapshot().waiting
    driver.plan(Plan(shapes={"late": Shape(pool="p", gpus=4)}, hold={"o": 5}))  # of a policy that does not ask
    assert driver.kernel.jobs["late"].shape is None


def test_a_job_that_was_promised_gpus_does_not_get_them_from_a_purse_that_is_spent_meanwhile():
    driver = town(purse(VISION, 1), nodes=4)
    driver.submit(of("ann", "vision", "a", gpus=4), of("ann", "vision", "b", gpus=4))
    driver.plan(Plan(shapes={"a": Shape(pool="p", gpus=4)}, hold={"o": 1}))
    driver.answer(driver.open[0])
    driver.answer(driver.open[0])
    driver.plan(Plan(shapes={job_id: Shape(pool="p", gpus=4) for job_id in "ab"}, hold={"o": 2}))
    assert driver.kernel.jobs["b"].shape is not None  # its node is on the way
    ring(driver, CheckPurse())
    assert driver.kernel.jobs["b"].shape is None
    assert not driver.kernel.tenancy.lines["p"]


def test_a_jobs_own_purse_shows_it_where_it_can_be_left_for_that():
    """Twice what leaving takes: half a cent a GPU, in the dear pool two cents."""
    dear = an_offer("dear", usd_per_h="14.4", pool="dear", wind_down_s=10.0, cap=Price.from_usd_per_h("14.4"))
    driver = Driver([an_hour(), dear], limits={"o": Limit(max_nodes=2), "dear": Limit(max_nodes=2)})
    driver.submit(of("", "", "a", gpus=4, min_gpus=3))
    driver.tell(purse(OWN, "0.05"))

    def seen():
        return [(state.job.pools, state.job.max_gpus) for state in driver.kernel.snapshot().waiting.by(lambda s: s.seq)]

    assert seen() == [(("p",), 4)]
    driver.tell(purse(OWN, "0.06"))
    assert seen() == [((), 3)]
    driver.tell(purse(OWN, "0.08"))
    assert seen() == [((), 4)]
    driver.tell(purse(OWN, "0.0149"))
    assert seen() == []
    assert driver.kernel.budgets.held_by(driver.kernel.jobs["a"].job, 0.0) == OWN
    driver.tell(purse(OWN, "0.015"))
    assert seen() == [(("p",), 3)]


def test_a_job_is_shown_no_wider_than_its_own_purse_can_pay_for():
    driver = town(wind_down_s=10.0)
    driver.submit(of("ann", "vision", "a", gpus=4, min_gpus=1))
    driver.tell(purse(OWN, "0.015"))
    (shown,) = driver.kernel.snapshot().waiting.by(lambda state: state.seq)
    assert (shown.job.gpus, shown.job.max_gpus) == (3, 3)  # half a cent for each GPU
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].gpus == 3


def test_a_purse_made_smaller_than_what_is_spent_stops_its_jobs_at_once():
    driver = town(purse(VISION, 100))
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    driver.tell(purse(VISION, 1, at_s=5000.0))
    assert driver.kernel.jobs["a"].phase is Phase.STOPPING
    driver.settle(Fifo())
    assert spent(driver, VISION) == usd(5)
    assert driver.kernel.jobs["a"].phase is Phase.WAITING
    driver.tell(purse(VISION, None, at_s=6000.0))
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING


def test_a_job_that_starts_or_moves_is_stopped_all_the_same():
    driver = town(purse(VISION, 1))
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.plan(Plan(shapes={"a": Shape(pool="p", gpus=4)}, hold={"o": 1}))
    driver.answer(driver.open[0])
    assert driver.kernel.jobs["a"].phase is Phase.STARTING  # for ever
    ring(driver, CheckPurse())
    assert driver.kernel.jobs["a"].phase is Phase.STOPPING


# ---------------------------------------------------------------------- periods


def test_a_new_month_brings_new_money_at_its_first_instant():
    driver = town(purse(VISION, 1, Period.MONTH))
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    assert driver.timers[PeriodOver()] == 12 * 3600.0
    ring(driver, CheckPurse())
    assert driver.last[-2].text.endswith("go on at 2026-12-01 00:00 UTC, or when it is given more")
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.WAITING
    ring(driver, PeriodOver())
    assert driver.now_s == 12 * 3600.0
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    assert driver.timers[PeriodOver()] == (12 + 31 * 24) * 3600.0
    ring(driver, CheckPurse())
    driver.settle(Fifo())
    assert usd("1.9") < spent(driver, VISION) <= usd(2)


def test_what_is_spent_before_midnight_is_of_the_old_day_however_late_the_news():
    driver = town(purse(VISION, 100, Period.DAY))
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    driver.tell(PriceChanged(12 * 3600.0 + 1000.0, "o", Price(0)))
    assert Money(driver.kernel.budgets.allowed[VISION].opening) == usd("43.2")
    assert spent(driver, VISION) == usd("44.2")


def test_who_was_away_for_months_begins_with_the_month_that_it_is():
    driver = town(purse(VISION, 100, Period.MONTH))
    driver.tell(TimerFired((12 + 40 * 24) * 3600.0, CheckPurse()))
    january = int(datetime(2027, 2, 1, tzinfo=UTC).timestamp())
    assert driver.kernel.budgets.allowed[VISION].ends == january


def test_another_amount_for_the_same_period_keeps_what_was_spent_in_it():
    driver = town(purse(VISION, 10, Period.MONTH))
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    driver.tell(purse(VISION, 20, Period.MONTH, at_s=5000.0))
    assert Money(driver.kernel.budgets.left(VISION, microseconds(5000.0))) == usd(15)
    driver.tell(purse(VISION, 20, Period.WEEK, at_s=5000.0))  # from now on by weeks
    assert Money(driver.kernel.budgets.left(VISION, microseconds(5000.0))) == usd(20)


def test_news_that_cannot_be_does_not_begin_a_period():
    driver = town(purse(VISION, 1, Period.DAY), purse(ORG, 1, Period.DAY))
    before = driver.kernel.facts()
    with pytest.raises(UnexpectedEvent):
        driver.kernel.handle(RentRefused(90_000.0, "n99"))
    assert driver.kernel.facts() == before


def test_the_purse_of_all_has_periods_too_and_another_budget_leaves_them():
    driver = town(purse(ORG, 1, Period.DAY), nodes=1)
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    ring(driver, CheckPurse())
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.WAITING
    driver.tell(BudgetChanged(driver.now_s, Budget(average=Price(1))))
    assert driver.kernel.supply.budget == Budget(average=Price(1), purse=usd(1))
    driver.settle(Fifo())
    ring(driver, PeriodOver())
    driver.settle(Fifo())
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    ring(driver, CheckPurse())
    driver.settle(Fifo())
    assert usd("1.9") < driver.kernel.ledger.spent(driver.now_s) <= usd(2)
    driver.tell(purse(ORG, None, at_s=driver.now_s))
    assert driver.kernel.supply.budget.purse is None


# ---------------------------------------------------------------------- in the simulator, and again


def test_a_simulation_waits_for_the_next_month_and_gives_up_where_no_month_would_do():
    cloud = Cloud(
        offers=(an_hour(),),
        limits={"o": Limit(max_nodes=1)},
        purses=(purse(VISION, 1, Period.MONTH), purse(ANN, 0, Period.WEEK)),
        physics=Physics(release_s=10.0),
    )
    jobs = [
        a_job("a", work=1500.0 * 4, gpus=4, team="vision"),
        a_job("b", work=100.0, gpus=4, min_gpus=4, user="ann"),
    ]
    run = simulate(jobs, Fifo(), cloud, checked=True)
    assert run.unfinished == ("b",)
    assert run.record.jobs["a"].finish_s == pytest.approx(12 * 3600.0 + 500.0, abs=1.0)


def a_life():
    driver = town(purse(VISION, 2, Period.DAY), purse(ANN, 1))
    driver.submit(of("ann", "vision", "a", gpus=4), of("bob", "vision", "b", gpus=2))
    driver.settle(Fifo())
    for _ in range(4):
        ring(driver, CheckPurse(), PeriodOver())
        driver.settle(Fifo())
    return driver


def test_a_life_with_purses_replays_and_rests_the_same():
    driver = a_life()
    facts = driver.kernel.facts()
    assert replay(driver.journal).budgets.facts() == driver.kernel.budgets.facts()
    again = kernel_from_snapshot(json.loads(json.dumps(facts)))
    assert again.facts() == facts
    event = JobSubmitted(driver.now_s, a_job("c"))
    assert again.handle(event) == driver.kernel.handle(event)


def test_a_snapshot_from_before_there_were_purses_has_none():
    facts = json.loads(json.dumps(town().kernel.facts()))
    del facts["tenancy"]["purses"], facts["period_s"]
    assert not kernel_from_snapshot(facts).budgets.allowed


def test_a_life_of_another_version_is_followed_with_its_purses():
    driver = a_life()
    follower = Follower([an_hour()], limits={"o": Limit(max_nodes=2)})
    for step in steps_from(driver.journal[1:], source="life", first=2):
        follower.follow(step.event, step.orders)
    now_us = microseconds(driver.now_s)
    assert follower.budgets.spent(VISION, now_us) == driver.kernel.budgets.spent(VISION, now_us)


def test_why_a_job_waits_is_known_by_the_purse_that_holds_it_and_policies_do_not_see_it():
    driver = town(purse(VISION, 100), purse(ANN, 0))
    driver.submit(of("ann", "vision", "a", gpus=4), of("bob", "vision", "b", gpus=4))
    kernel = driver.kernel
    assert kernel.budgets.held_by(kernel.jobs["a"].job, 0.0) == ANN
    assert kernel.budgets.held_by(kernel.jobs["b"].job, 0.0) is None
    assert [state.job.id for state in kernel.snapshot().waiting.by(lambda state: state.seq)] == ["b"]
    assert [state.job.id for state in kernel.snapshot(frozen=True).waiting.by(lambda state: state.seq)] == ["b"]


def test_a_purse_of_less_than_nothing_is_refused():
    with pytest.raises(InvalidValue, match="budget of team vision"):
        purse(VISION, "-1")


def test_nothing_is_counted_and_no_timer_set_where_nobody_has_a_purse():
    driver = town()
    driver.submit(of("ann", "vision", "a", gpus=4))
    driver.settle(Fifo())
    assert not driver.kernel.budgets.shares.counts
    assert not any(isinstance(order, SetTimer) for order in driver.last)
