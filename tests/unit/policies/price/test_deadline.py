"""Deadlines: the least value of time that meets them, and a word to the owner where nothing does."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import TellUser
from sublet.domain.budget import Budget, Limit
from sublet.domain.demand import Demand
from sublet.domain.events import JobFinished
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Plan
from sublet.kernel.kernel import Kernel
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of, options_of_all
from sublet.planning.terms import Terms
from sublet.policies.price.choices import SAFETY, in_time, too_late
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.boa_ideal import BoaIdeal
from tests.rigs.sizes import examples

STEP = 2 ** (1 / 64)  # values of time are tried so close to one another
OFFER = an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)
SITES = Terms.from_snapshot(Kernel([OFFER]).snapshot()).sites

speeds = st.one_of(
    st.sampled_from([0.5, 0.9, 0.99, 1.0]).map(lambda p: Amdahl(parallel=p)),
    st.sampled_from([0.3, 0.7]).map(lambda e: PowerLaw(exponent=e)),
)


def choices(speed, hours=1.0, restart_s=0.0, widest=32):
    """The menu of a job of so many hours on one GPU, and its options at any value of time."""
    job = a_job(work=3600 * hours, speed=speed, gpus=1, max_gpus=widest, restart_s=restart_s)
    menu, state = menu_of(job, SITES), JobState(job=job, seq=0)
    return menu, lambda value: options_of(menu, state, 0.0, value, (1.0,))


def least_value(hours_C, gpus_C, at_least, left_h):
    """The exact value of time, this or more, from which on the best shape is fast enough; None if it never is.

    The total of a shape is a straight line over the value of time, so that the best one changes only where two cross.
    """
    money_C = gpus_C * hours_C
    slower, faster = np.meshgrid(hours_C, hours_C)
    cheaper, dearer = np.meshgrid(money_C, money_C)
    with np.errstate(divide="ignore", invalid="ignore"):
        turns = ((dearer - cheaper) / (slower - faster)).ravel()
    turns = sorted({at_least, *(turn for turn in turns if np.isfinite(turn) and turn > at_least)})
    for turn in turns:
        just_above = turn * (1 + 1e-9)
        if hours_C[(just_above * hours_C + money_C).argmin()] <= left_h:
            return turn
    return None


@settings(max_examples=examples(200))
@given(speeds, st.sampled_from([0.01, 0.3, 4.0, 200.0]), st.floats(0.02, 1.5), st.sampled_from([0.0, 90.0]))
def test_the_shape_is_that_of_the_least_value_of_time_that_meets_the_deadline(speed, value, left_h, restart_s):
    menu, options_at = choices(speed, restart_s=restart_s)
    hours_C = restart_s / 3600 + np.array([1 / speed.speedup(int(gpus)) for gpus in menu.gpus_C])
    needed = least_value(hours_C, menu.gpus_C, value, SAFETY * left_h)
    found, warning = in_time(options_at, options_at(value), left_h)
    if needed is None and hours_C.min() <= left_h:  # with nothing to spare: as fast as can be
        assert warning == ""
        assert hours_C[found.best] == pytest.approx(hours_C.min())
        return
    if needed is None:
        assert warning
        assert found.best == options_at(value).best  # what money suggests: there is nothing to save
        return
    assert warning == ""
    assert hours_C[found.best] <= SAFETY * left_h
    dearest = options_at(needed * STEP * (1 + 1e-6))  # a little more hurry than needed is all that is allowed
    assert hours_C[found.best] >= hours_C[dearest.best]


@given(speeds, st.floats(0.02, 50.0), st.floats(0.02, 50.0))
def test_a_tighter_deadline_never_makes_a_job_slower(speed, one, other):
    _, options_at = choices(speed)
    tight, loose = (in_time(options_at, options_at(1.0), left_h) for left_h in sorted((one, other)))
    if not tight[1]:
        assert tight[0].hours_C[tight[0].best] <= loose[0].hours_C[loose[0].best] * (1 + 1e-9)
        assert not loose[1]


def test_a_deadline_that_is_met_anyway_costs_nothing():
    _, options_at = choices(Amdahl(parallel=0.9))
    found, warning = in_time(options_at, options_at(5.0), 100.0)
    assert warning == ""
    assert found.cost_C.tolist() == options_at(5.0).cost_C.tolist()


def test_the_warning_names_the_time_that_is_left_the_fastest_shape_and_what_could_be_met():
    """On 32 GPUs Amdahl 0.9 is 7.8 times as fast: 10 hours become 1.28."""
    _, options_at = choices(Amdahl(parallel=0.9), hours=10.0)
    _, warning = in_time(options_at, options_at(1.0), 0.5)
    assert "in 0.50 h" in warning
    assert "32 x T4" in warning
    assert "takes 1.28 h" in warning
    assert "1.28 h from now" in warning


def test_what_the_warning_promises_is_kept():
    _, options_at = choices(Amdahl(parallel=0.9), hours=10.0)
    _, warning = in_time(options_at, options_at(1.0), 0.5)
    promised_h = float(re.search(r"a deadline ([\d.]+) h from now", warning)[1])
    assert in_time(options_at, options_at(1.0), promised_h + 0.01)[1] == ""


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(speeds, st.sampled_from([0.5, 3.0, 40.0]), st.integers(1, 8)), min_size=1, max_size=4), st.data()
)
def test_whom_nothing_helps_is_told_side_by_side_as_one_by_one(kinds, data):
    made = [a_job(f"j{at}", work=3600 * h, speed=s, gpus=1, max_gpus=w) for at, (s, h, w) in enumerate(kinds)]
    states, menus = [JobState(job=job, seq=0) for job in made], [menu_of(job, SITES) for job in made]
    table = options_of_all(menus, states, 0.0, [2.0] * len(made), (1.0,))
    left_h = np.array([data.draw(st.sampled_from([0.01, 0.5, 1.0, 9.0])) for _ in made])
    hopeless, others = too_late(table, np.arange(len(made)), left_h)
    for row in range(len(made)):
        at_value = lambda value, row=row: options_of(menus[row], states[row], 0.0, value, (1.0,))  # noqa: E731
        options, warning = in_time(at_value, table.of(row), float(left_h[row]))
        assert str(hopeless.get(row, "")) == warning
        assert row in others or np.array_equal(options.cost_C, table.of(row).cost_C)


def test_a_job_that_can_run_nowhere_gets_no_shape_and_no_arithmetic():
    job = a_job(speed=Linear(kinds={"A100": 1.0}), deadline_s=1.0)
    driver = Driver([OFFER])
    driver.submit(job, a_job("b"))
    assert set(Price().decide(driver.kernel.snapshot()).shapes) == {"b"}


def test_a_deadline_that_a_shape_meets_is_not_called_impossible_however_little_money_there_is():
    speed = Amdahl(parallel=0.99)
    _, options_at = choices(speed, hours=100.0, widest=64)
    left_h = 100 / speed.speedup(60) / SAFETY
    found, warning = in_time(options_at, options_at(1e-6), left_h)  # the least that a tight budget leads to
    assert warning == ""
    assert found.menu.shapes[found.best].gpus in {60, 61}


def test_a_job_with_one_shape_that_can_just_be_in_time_takes_it():
    _, options_at = choices(Linear(), widest=1)
    plain = options_at(3.0)
    found, warning = in_time(options_at, plain, 1.0 / 0.97)
    assert warning == ""
    assert found.cost_C.tolist() == plain.cost_C.tolist()


def test_a_deadline_that_can_just_be_met_is_tried():
    """The fastest takes 97 % of the time that is left: not safe, but not to be given up either."""
    speed = Amdahl(parallel=0.9)
    menu, options_at = choices(speed)
    fastest_h = 1 / speed.speedup(32)
    found, warning = in_time(options_at, options_at(1.0), fastest_h / 0.97)
    assert menu.shapes[found.best].gpus == 32
    assert "cannot be met" not in warning


# ---------------------------------------------------------------------- as a policy and the kernel see it


def hurried(deadline_h, *, average=None, hours=100.0, policy=None):
    """The plan for one job with a deadline."""
    job = a_job(work=3600 * hours, speed=Amdahl(parallel=0.99), gpus=1, max_gpus=64, deadline_s=deadline_h * 3600)
    budget = Budget(average=None if average is None else Usd.from_usd_per_h(average))
    kernel = Kernel([OFFER], budget=budget, expected=Demand.from_jobs([job], 1.0))
    driver = Driver([OFFER], budget=budget)
    driver.kernel = kernel
    driver.submit(job)
    return (policy or BoaIdeal()).decide(kernel.snapshot())


def test_a_job_in_a_hurry_gets_wider_than_money_suggests():
    (easy,) = hurried(1000.0, average="120").shapes.values()
    (tight,) = hurried(2.8, average="120").shapes.values()
    assert easy.gpus < 30
    assert tight.gpus >= 60


def test_the_reason_of_a_hurried_job_tells_what_it_will_really_cost():
    plan = hurried(2.8, average="120")
    (shape,), (reason,) = plan.shapes.values(), plan.reasons.values()
    hours = 100 / Amdahl(parallel=0.99).speedup(shape.gpus)
    told_h, told_usd = (float(number) for number in re.search(r": ([\d.]+) h, USD (\d+\.\d+)", reason).groups())
    assert told_h == pytest.approx(hours, abs=0.01)
    assert told_usd == pytest.approx(hours * shape.gpus, rel=0.01)


def told(jobs, policy, **cloud):
    """Every word to the user, with its time."""
    words = []
    simulate(
        jobs,
        policy,
        Cloud(offers=[OFFER], **cloud),
        checked=True,
        watch=lambda event, orders: words.extend((event.at_s, o.text) for o in orders if isinstance(o, TellUser)),
    )
    return words


@pytest.mark.parametrize("policy", [Price(), BoaIdeal()])
def test_the_owner_is_told_once_and_at_submission(policy):
    late = a_job("late", submit_s=100.0, work=36_000.0, speed=Linear(), gpus=1, max_gpus=4, deadline_s=1900.0)
    fine = a_job("fine", submit_s=100.0, work=3600.0, deadline_s=9000.0)
    ((at_s, text),) = told([a_job("first", work=3600.0), late, fine], policy, limits={"o": Limit(max_nodes=9)})
    assert at_s == 100.0
    assert text.startswith("late: its deadline in 0.50 h cannot be met")
    assert "4 x T4" in text
    assert "2.50 h" in text


def texts(orders):
    return [order.text for order in orders if isinstance(order, TellUser)]


def test_a_warning_of_a_plan_is_told_once_and_only_of_jobs_that_are_here():
    driver = Driver([OFFER])
    driver.submit(a_job("a"), a_job("b"))
    warned = Plan(warnings={"a": "too late", "gone": "too late"})
    assert texts(driver.plan(warned)) == ["a: too late"]
    assert texts(driver.plan(warned)) == []
    assert texts(driver.plan(Plan(warnings={"a": "much too late", "b": "late"}))) == ["b: late"]


def test_another_job_of_the_same_name_is_told_anew():
    driver = Driver([OFFER])
    driver.submit(a_job("a"))
    assert texts(driver.plan(Plan(warnings={"a": "too late"}))) == ["a: too late"]
    driver.tell(JobFinished(10.0, "a"))
    driver.submit(a_job("a", submit_s=10.0))
    assert texts(driver.plan(Plan(warnings={"a": "too late"}))) == ["a: too late"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(speeds, st.floats(0.05, 3.0), st.floats(0.01, 0.94)), min_size=1, max_size=5))
def test_where_nothing_is_short_every_deadline_that_was_not_warned_of_is_met(drawn):
    """No boot, no pause: each job has the shape of its least hurry from its first to its last second."""
    jobs = [
        a_job(f"j{n}", work=3600 * hours, speed=speed, gpus=1, max_gpus=32, deadline_s=3600 * hours * part)
        for n, (speed, hours, part) in enumerate(drawn)
    ]
    words = []
    run = simulate(
        jobs,
        Price(),
        Cloud(offers=[OFFER], budget=Budget(average=Usd.from_usd_per_h("0.5"))),
        expected=Demand.from_jobs(jobs, 1.0),
        watch=lambda event, orders: words.extend(o.text.partition(":")[0] for o in orders if isinstance(o, TellUser)),
    )
    for job in jobs:
        assert job.id in words or run.record.jobs[job.id].finish_s <= job.deadline_s
        possible_s = job.work / job.speed.speedup(32)
        if math.isclose(possible_s, SAFETY * job.deadline_s, rel_tol=1e-6):
            continue
        if possible_s > job.deadline_s:
            assert job.id in words
