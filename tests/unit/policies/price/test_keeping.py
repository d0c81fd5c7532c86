"""When a new split pays for those who give way, what a job may ask for again, and who is looked at: by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import JobSubmitted
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.perf.speedup import Amdahl
from sublet.planning.menu import menu_of
from sublet.planning.options import OptionsTable, options_of
from sublet.planning.terms import Refusals, Terms
from sublet.policies.price.choices import _without_gambles, within_purse
from sublet.policies.price.congestion import WAIT, _pays
from sublet.policies.price.decision import OVERTAKERS, _as_room_lasts
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

INF = math.inf

# ---------------------------------------------------------------------- whether a new split pays


def pays(cost_JC, hours_JC, held_J, new_J, old_J):
    """Of a table in which nothing but what shapes cost and how long they take counts."""
    cost_JC, hours_JC = np.array(cost_JC, dtype=float), np.array(hours_JC, dtype=float)
    jobs = np.zeros(len(cost_JC))
    table = OptionsTable(
        menus=(),
        **dict.fromkeys(("value_J", "left_J", "gpu_rate_J", "last_J", "need_J", "perfect_J", "doubted_J"), jobs),
        **dict.fromkeys(("rate_JC", "gpus_JC", "rent_JC", "row_KJC", "gpus_KJC", "now_JC"), cost_JC),
        cost_JC=cost_JC,
        hours_JC=hours_JC,
    )
    return _pays(table, np.array(held_J), np.array(new_J), np.array(old_J))


TWO = [[10.0, 4.0], [5.0, 9.0]]  # the first would save 6 by its second shape, the second lose 4
HOURS = [[10.0, 1.0], [20.0, 1.0]]
NEW, OLD = [1, 1], [0, 0]


def test_fewer_who_wait_always_pay_and_more_never_do():
    assert pays(TWO, HOURS, [0, 0], [1, 1], [0, WAIT])
    assert not pays(TWO, HOURS, [0, 0], [1, WAIT], [0, 0])


def test_nobody_waits_in_the_stead_of_another():
    assert not pays(TWO, HOURS, [WAIT, WAIT], [1, WAIT], [WAIT, 0])


def test_where_nobody_loses_it_pays():
    assert pays(TWO, HOURS, OLD, [1, 0], OLD)
    assert pays(TWO, HOURS, OLD, OLD, OLD)


def test_a_newcomer_may_gain_more_than_others_lose_and_who_has_a_place_may_not():
    assert pays(TWO, HOURS, [WAIT, 0], NEW, OLD)  # 6 for 4
    assert not pays(TWO, HOURS, [0, 0], NEW, OLD)
    assert not pays([[10.0, 6.0], [5.0, 9.0]], HOURS, [WAIT, 0], NEW, OLD)  # 4 for 4
    assert pays([[10.0, 5.9], [5.0, 9.0]], HOURS, [WAIT, 0], NEW, OLD)


def test_what_it_gains_counts_until_the_first_of_those_who_lose_would_have_ended():
    """Six hours of ten: 3.6 of 6 for 4. Seven: 4.2. Of two who lose, the one that ends first counts."""
    assert not pays(TWO, [[10.0, 1.0], [6.0, 1.0]], [WAIT, 0], NEW, OLD)
    assert pays(TWO, [[10.0, 1.0], [7.0, 1.0]], [WAIT, 0], NEW, OLD)
    three, new, old = [*TWO, [1.0, 1.1]], [1, 1, 1], [0, 0, 0]
    assert pays(three, [[10.0, 1.0], [7.0, 1.0], [70.0, 1.0]], [WAIT, 0, 0], new, old)  # 4.2 for 4.1
    assert not pays(three, [[10.0, 1.0], [7.0, 1.0], [6.5, 1.0]], [WAIT, 0, 0], new, old)


def test_gains_of_newcomers_add_up_and_so_do_losses():
    four = [[10.0, 8.0], [10.0, 8.0], [5.0, 6.5], [5.0, 7.4]]
    held, new, old = [WAIT, WAIT, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]
    assert pays(four, [[1.0, 1.0]] * 4, held, new, old)  # 4 for 3.9
    assert not pays([*four[:3], [5.0, 7.6]], [[1.0, 1.0]] * 4, held, new, old)
    assert not pays(four, [[0.0, 1.0], *[[1.0, 1.0]] * 3], held, new, old)  # who is done anyway gains nothing


def test_newcomers_alone_have_nothing_to_keep_from_one_another():
    assert pays([[10.0, 9.0], [5.0, 9.0]], HOURS, [WAIT, WAIT], NEW, OLD)  # 1 for 4, which the split has weighed
    assert not pays([[10.0, 9.0], [5.0, 9.0]], HOURS, [WAIT, 0], NEW, OLD)
    three = [[10.0, 9.0], [5.0, 9.0], [5.0, 5.5]]
    assert not pays(three, [*HOURS, [20.0, 1.0]], [WAIT, WAIT, 0], [1, 1, 1], [0, 0, 0])  # one gives way, for less


@settings(max_examples=examples(40), deadline=None)
@given(
    short_h=st.floats(0.5, 10.0),
    times=st.floats(1.05, 60.0),
    parallel=st.sampled_from([0.9, 0.95, 0.99]),
    hour_usd=st.sampled_from([5.0, 20.0, 200.0]),
    size=st.sampled_from([1, 2, 4]),
    first=st.booleans(),
)
def test_of_two_newcomers_alike_but_for_their_work_the_short_one_has_no_fewer_gpus(
    short_h, times, parallel, hour_usd, size, first
):
    """It leaves soon, and then the other has them all."""
    hours = {"short": short_h, "long": short_h * times}
    driver = Driver([an_offer("o", gpus=size)], limits={"o": Limit(max_nodes=12 // size)})
    for name in ("short", "long") if first else ("long", "short"):
        job = a_job(name, work=3600.0 * hours[name], speed=Amdahl(parallel=parallel), max_gpus=12, restart_s=30.0)
        driver.tell(JobSubmitted(0.0, job))
    plan = Price(hour_usd=hour_usd).decide(driver.kernel.snapshot())
    if plan.congestion_usd_per_gpu_h:  # else each has what suits it, and a restart counts for less in a long one
        assert plan.shapes["short"].gpus >= plan.shapes["long"].gpus >= 1


# ---------------------------------------------------------------------- what was refused


HERE, THERE = 0, 1  # rows


@pytest.fixture
def terms():
    return Terms.from_snapshot(
        Driver([an_offer(name, gpus=1, pool=name) for name in ("here", "there")]).kernel.snapshot()
    )


def asked(terms, *, refused=(), free=(0.0, 0.0), beside=(0.0, 0.0), coming=(), own=(HERE,), **facts):
    """Which pools and widths are left to a job of one to four GPUs."""
    facts = {"shape": Shape("here", 2), "runs_in": Shape("here", 2), "phase": Phase.RUNNING, "gpus": 2, **facts}
    state = JobState(job=a_job("a", gpus=1, max_gpus=4), seq=0, **facts)
    options = options_of(menu_of(state.job, terms.sites), state, 0.0, 1.0, terms.rent_R)
    refusals = Refusals(
        refused_R=np.array([row in refused for row in (HERE, THERE)]),
        coming_R=np.array([row in coming for row in (HERE, THERE)]),
        free_R=np.array(free),
        beside_R=np.array(beside),
    )
    found = _without_gambles(options, state, own, refusals)
    left = [shape for shape, cost in zip(found.menu.shapes, found.cost_C, strict=True) if np.isfinite(cost)]
    return {pool: [shape.gpus for shape in left if shape.pool == pool] for pool in ("here", "there")}


ALL = [1, 2, 3, 4]


def test_what_was_not_refused_may_be_asked_for(terms):
    assert asked(terms) == {"here": ALL, "there": ALL}
    assert asked(terms, refused=[THERE], own=()) == {"here": ALL, "there": ALL}  # nobody has anything to lose


def test_for_what_was_refused_nothing_is_given_up_but_what_is_free_or_fits_beside_may_be_had(terms):
    assert asked(terms, refused=[THERE]) == {"here": ALL, "there": []}
    assert asked(terms, refused=[THERE], free=(0.0, 1.0)) == {"here": ALL, "there": [1]}
    assert asked(terms, refused=[THERE], beside=(0.0, 3.0)) == {"here": ALL, "there": [1, 2, 3]}
    assert asked(terms, refused=[HERE, THERE]) == {"here": ALL, "there": []}  # its own it may grow in


def test_who_has_nothing_asks_for_anything_unless_something_is_on_its_way(terms):
    waits = {"phase": Phase.WAITING, "gpus": 0, "runs_in": None}
    assert asked(terms, refused=[THERE], **waits) == {"here": ALL, "there": ALL}
    assert asked(terms, refused=[THERE], coming=[HERE], **waits) == {"here": ALL, "there": []}
    assert asked(terms, refused=[THERE], coming=[THERE], **waits) == {"here": ALL, "there": ALL}
    beside = {"beside": (0.0, 3.0), "free": (0.0, 1.0)}  # what boots for it would be given back meanwhile
    assert asked(terms, refused=[THERE], coming=[HERE], **beside, **waits) == {"here": ALL, "there": [1]}


def test_who_runs_as_it_was_promised_does_not_wait_for_what_comes(terms):
    beside = {"beside": (0.0, 3.0), "free": (0.0, 1.0)}
    assert asked(terms, refused=[THERE], coming=[HERE], **beside) == {"here": ALL, "there": [1, 2, 3]}
    grows = {"shape": Shape("here", 4)}
    assert asked(terms, refused=[THERE], coming=[HERE], **beside, **grows) == {"here": ALL, "there": [1]}


def test_where_nothing_else_is_left_it_asks_again(terms):
    state = {"own": (THERE,), "shape": Shape("there", 2), "runs_in": Shape("there", 2)}
    assert asked(terms, refused=[HERE, THERE], **state) == {"here": [], "there": ALL}
    job = a_job("a", gpus=1, max_gpus=4, pools=("here",))
    mover = JobState(job=job, seq=0, shape=Shape("there", 2), runs_in=Shape("there", 2), phase=Phase.RUNNING, gpus=2)
    options = options_of(menu_of(job, terms.sites), mover, 0.0, 1.0, terms.rent_R)
    none = Refusals(
        refused_R=np.array([True, False]), coming_R=np.zeros(2, bool), free_R=np.zeros(2), beside_R=np.zeros(2)
    )
    assert _without_gambles(options, mover, [THERE], none) is options


# ---------------------------------------------------------------------- a purse of its own, and who is next


def test_a_purse_strikes_out_what_it_cannot_pay_and_never_the_cheapest_or_what_is_held(terms):
    """Rents to the end of 2, 3 and 4 USD."""
    state = JobState(job=a_job("a", gpus=1, max_gpus=3), seq=0)
    options = options_of(menu_of(state.job, terms.sites), state, 0.0, 1.0, terms.rent_R)
    here = [options.menu.column[Shape("here", gpus)] for gpus in (1, 2, 3)]
    there = [options.menu.column[Shape("there", gpus)] for gpus in (1, 2, 3)]
    hours = np.full(6, 9e9)
    hours[here] = [2.0, 1.5, 4.0 / 3.0]  # at 1, 2 and 3 USD an hour
    options = replace(options, hours_C=hours)

    def left(purse_usd, held=WAIT):
        cost_C = within_purse(options, purse_usd, terms, held).cost_C
        assert not np.isfinite(cost_C[there]).any()
        return [gpus for gpus, at in zip((1, 2, 3), here, strict=True) if np.isfinite(cost_C[at])]

    assert left(3.0) == [1, 2]
    assert left(2.9) == left(1.0) == left(0.0) == [1]
    assert left(1.0, here[2]) == [1, 3]
    assert within_purse(options, 1e12, terms, WAIT) is options


def test_as_many_are_looked_at_as_there_is_room_for_and_64_more():
    states = [JobState(job=a_job(f"j{at}", gpus=2, min_gpus=2), seq=at) for at in range(100)]

    def looked_at(room):
        found = list(_as_room_lasts(iter(states), room))
        assert found == states[: len(found)]
        return len(found)

    assert OVERTAKERS == 64
    assert [looked_at(room) for room in (-1.0, 0.0, 1.0, 2.0, 3.0, 8.0)] == [64, 64, 65, 65, 66, 68]
    assert looked_at(INF) == 100
