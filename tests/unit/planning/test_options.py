"""The cost to finish a job, against every sequence of shapes that it could go through."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import packed
from sublet.kernel.kernel import Kernel
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Terms
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

NEVER_S = 1e12  # a restart that nothing is worth
GPUS_PER_NODE = 2
RENTS = (1.5, 4.0)  # USD per GPU-hour

OFFERS = [
    an_offer("t", gpus=GPUS_PER_NODE, usd_per_h="3", market=Market.ON_DEMAND, boot_s=90.0, pool="t"),
    an_offer("a", gpus=GPUS_PER_NODE, usd_per_h="8", gpu="A100", market=Market.ON_DEMAND, boot_s=30.0, pool="a"),
]
SITES = Terms.from_snapshot(Kernel(OFFERS).snapshot()).sites

moving = st.sampled_from([0.5, 1.0, 1.9, 2.7, 4.0, 9.0])
rates = st.just(0.0) | moving
pauses = st.sampled_from([0.0, 5.0, 60.0, 600.0])
anywhere = st.sampled_from(Phase)
values = st.sampled_from([0.01, 0.125, 1.5, 7.25, 60.0, 1000.0])  # three digits: what follows is exact for them


@st.composite
def cases(draw, *, restarts=pauses, rates=rates, stands=anywhere, most=3):
    """A job of one to `most` phases on two or four shapes, and where it stands."""
    ends = tuple(np.cumsum([draw(st.sampled_from([30.0, 600.0, 4000.0])) for _ in range(draw(st.integers(1, most)))]))
    widest = draw(st.integers(1, 2))
    table = {
        (gpu, packed(gpus, GPUS_PER_NODE)): [draw(rates) for _ in ends]
        for gpu in ("T4", "A100")
        for gpus in range(1, widest + 1)
    }
    speed = Phased(ends=ends, rates=lambda gpu, spread: table[gpu, spread])
    work = ends[-1] * draw(st.sampled_from([0.3, 0.9, 1.0, 1.5]))
    job = a_job(work=work, speed=speed, gpus=1, max_gpus=widest, restart_s=draw(restarts))
    menu = menu_of(job, SITES)
    assume(menu.shapes)
    return menu, draw(states(job, menu, stands))


@st.composite
def states(draw, job, menu, stands):
    phase = draw(stands)
    done = draw(st.sampled_from([0.0, 0.1, 0.5, 0.99])) * job.work
    if phase is Phase.WAITING:
        return JobState(job=job, seq=0, done=done)
    shape = draw(st.sampled_from(menu.shapes))
    gpu = {"t": "T4", "a": "A100"}[shape.pool]
    spread = packed(shape.gpus, GPUS_PER_NODE)
    return JobState(
        job=job, seq=0, phase=phase, shape=shape, gpu=gpu, gpus=shape.gpus, spread=spread, done=done, as_of_s=100.0
    )


def every_way(menu, state, value):
    """(first column, cost, hours) of every sequence of shapes from here to the end, by the rules of the game alone."""
    job, done = state.job, state.done
    pay_C = [
        value + RENTS[site] * (gpus + -gpus % GPUS_PER_NODE)
        for site, gpus in zip(menu.row_KC[0], menu.gpus_C, strict=True)
    ]
    ends = [*job.speed.ends[:-1], np.inf]
    first = next(at for at, end in enumerate(ends) if done < end)
    begins = [0.0, *ends]
    parts = [max(0.0, min(end, job.work) - max(begins[at], done)) for at, end in enumerate(ends)][first:]
    boots = [OFFERS[site].boot_s for site in menu.row_KC[0]]
    for way in product(range(len(menu.shapes)), repeat=len(parts)):
        if state.phase is Phase.WAITING:
            pause_s = job.restart_s + boots[way[0]]
        elif state.phase in {Phase.RUNNING, Phase.STARTING, Phase.RESIZING} and menu.shapes[way[0]] == state.shape:
            pause_s = 0.0
        else:
            pause_s = job.restart_s
        cost = hours = 0.0
        for at, (column, part) in enumerate(zip(way, parts, strict=True)):
            if at:
                pause_s = job.restart_s if column != way[at - 1] else 0.0
            rate = menu.rate_EC[first + at, column]
            time_h = pause_s / 3600 + (part / rate if rate > 0 else 0.0 if part == 0.0 and at else np.inf)
            hours, cost = hours + time_h, cost + pay_C[column] * time_h
        yield way, cost, hours


@settings(max_examples=examples(300))
@given(cases(), values)
def test_the_cost_of_each_first_shape_is_that_of_the_best_way_that_begins_with_it(case, value):
    menu, state = case
    options = options_of(menu, state, 100.0, value, RENTS)
    ways = list(every_way(menu, state, value))
    for column in range(len(menu.shapes)):
        beginning = [(cost, hours) for way, cost, hours in ways if way[0] == column]
        least = min(cost for cost, _ in beginning)
        assert options.cost_C[column] == pytest.approx(least, rel=1e-9)
        if np.isfinite(least):
            times = [hours for cost, hours in beginning if cost <= least * (1 + 1e-9)]
            assert any(options.hours_C[column] == pytest.approx(hours, rel=1e-9) for hours in times)
    assert options.any == any(np.isfinite(cost) for _, cost, _ in ways)


@given(cases(), st.floats(1e-3, 1e4))
def test_for_any_value_of_time_the_cost_is_right_within_a_percent(case, value):
    menu, state = case
    options = options_of(menu, state, 100.0, value, RENTS)
    least = min(cost for _, cost, _ in every_way(menu, state, value))
    assert options.cost_C.min() == pytest.approx(least, rel=0.01)


@given(cases(restarts=st.just(0.0), stands=st.just(Phase.RUNNING)), values)
def test_where_changing_is_free_a_running_job_takes_what_is_best_for_this_phase(case, value):
    menu, state = case
    options = options_of(menu, state, 100.0, value, RENTS)
    assume(options.any)
    rate_C = menu.rate_EC[menu.phase(state.done)]
    pay_C = menu.pay(value, RENTS)
    runs = rate_C > 0
    assert runs[options.best]
    per_work = pay_C[options.best] / rate_C[options.best]
    assert per_work == pytest.approx((pay_C[runs] / rate_C[runs]).min(), rel=1e-9)


@given(cases(restarts=st.just(NEVER_S), rates=moving, stands=st.just(Phase.RUNNING)), values)
def test_where_changing_is_out_of_the_question_a_running_job_stays_as_it_is(case, value):
    menu, state = case
    options = options_of(menu, state, 100.0, value, RENTS)
    held = menu.column[state.shape]
    assert options.best == held
    alone_s = state.job.speed.seconds(state.gpu, state.spread, state.done, state.job.work)
    assert options.hours_C[held] == pytest.approx(alone_s / 3600)


@given(cases(restarts=st.just(NEVER_S), rates=moving, stands=st.just(Phase.WAITING)), values)
def test_where_changing_is_out_of_the_question_a_new_job_takes_one_shape_to_its_end(case, value):
    menu, state = case
    options = options_of(menu, state, 100.0, value, RENTS)
    same = {way[0]: (cost, hours) for way, cost, hours in every_way(menu, state, value) if len(set(way)) == 1}
    assert options.cost_C == pytest.approx([same[column][0] for column in range(len(menu.shapes))])
    assert options.hours_C == pytest.approx([same[column][1] for column in range(len(menu.shapes))])


@given(cases(stands=st.just(Phase.RUNNING), most=1), values, st.sampled_from([0.0, 30.0, 900.0]))
def test_a_dearer_restart_never_makes_a_running_job_move_that_would_have_stayed(case, value, more_s):
    menu, state = case
    held = menu.column[state.shape]
    if options_of(menu, state, 100.0, value, RENTS).best != held:
        return
    slow = replace(state.job, restart_s=state.job.restart_s + more_s)
    slower = replace(state, job=slow)
    assert options_of(menu_of(slow, SITES), slower, 100.0, value, RENTS).best == held


def test_a_resize_is_worth_it_exactly_when_it_gains_more_than_the_pause_costs():
    """On 1 GPU at USD 1 with time at USD 3: 4 per hour. On 2 GPUs, 5 per hour at twice the speed.

    W hours of work left: staying costs 4 W, moving 5 (W / 2 + r), so that it pays to move if W > 10 r / 3.
    """
    offer = an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)
    sites = Terms.from_snapshot(Kernel([offer]).snapshot()).sites
    job = a_job(work=36_000.0, speed=Amdahl(parallel=1.0), gpus=1, max_gpus=2, restart_s=360.0)
    menu = menu_of(job, sites)
    for left_h, best in ((0.34, 2), (0.33, 1)):
        state = JobState(
            job=job,
            seq=0,
            phase=Phase.RUNNING,
            shape=menu.shapes[0],
            gpu="T4",
            gpus=1,
            spread=(1,),
            done=36_000.0 - left_h * 3600,
        )
        options = options_of(menu, state, 0.0, 3.0, (1.0,))
        assert menu.shapes[options.best].gpus == best
