"""Jobs side by side stand where each of them stands by itself, to the last digit."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape, packed
from sublet.kernel.kernel import Kernel
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.planning.jobs import NOTHING, OFF_MENU, SETTLED, _known, _latest, _SeenSites, read_jobs
from sublet.planning.menu import menu_of
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import HourWorth, TimePrice, ValueOfTime
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

OFFERS = [
    an_offer("t", gpus=2, usd_per_h="3", market=Market.ON_DEMAND, boot_s=90.0, pool="t"),
    an_offer("a", gpus=2, usd_per_h="8", gpu="A100", market=Market.ON_DEMAND, pool="a"),
]
SITES = Terms.from_snapshot(Kernel(OFFERS).snapshot()).sites
NOW_S = 1000.0

speeds = st.sampled_from(
    [
        Linear(),
        Amdahl(parallel=0.9),
        PowerLaw(exponent=0.7),
        Linear(kinds={"A100": 3.0}),  # no speed on the other kind
        Phased(ends=(500.0, 4000.0), rates=lambda gpu, spread: (1.7 * sum(spread), 0.9)),
    ]
)


@st.composite
def states(draw):
    """A job anywhere in its life."""
    widest = draw(st.integers(1, 4))
    job = a_job(
        work=draw(st.sampled_from([1.0, 777.7, 3600.0, 1e6, math.inf])),
        speed=draw(speeds),
        gpus=1,
        max_gpus=widest,
        weight=draw(st.sampled_from([0.3, 1.0, 7.0])),
        hurry=draw(st.booleans()),
        deadline_s=draw(st.sampled_from([None, 900.0, 5000.0])),
        submit_s=draw(st.sampled_from([0.0, 333.3])),
    )
    gpus = draw(st.integers(1, 4))  # also more than it would choose
    pool, gpu = draw(st.sampled_from([("t", "T4"), ("a", "A100")]))
    shape = draw(st.sampled_from([None, Shape(pool, gpus)]))
    phase = draw(st.sampled_from(Phase)) if shape else Phase.WAITING
    return JobState(
        job=job,
        seq=draw(st.integers(0, 99)),
        phase=phase,
        shape=shape,
        runs_in=draw(st.sampled_from([shape, shape and replace(shape, gpus=1)])),
        gpu=gpu if shape else "",
        gpus=gpus if shape else 0,
        spread=packed(gpus, 2) if shape else (),
        done=min(job.work, draw(st.sampled_from([0.0, 0.1, 600.0]))),
        as_of_s=draw(st.sampled_from([0.0, 333.3, NOW_S, NOW_S + 60.0])),
        held_since_s=draw(st.sampled_from([0.0, 333.3, NOW_S])),
        gpu_s=draw(st.sampled_from([0.0, 1234.5])),
    )


def alone(state):
    """What the fields of one job are, by its own methods."""
    menu, done = menu_of(state.job, SITES, state.shape), state.done_at(NOW_S)
    phase, own = menu.phase(done), NOTHING
    if state.shape is not None:
        own = menu.column.get(state.shape, OFF_MENU)
    here = state.runs_in if state.phase is Phase.RUNNING and state.runs_in else state.shape
    whole = NOTHING if state.shape is None or state.phase is Phase.BROKEN else menu.column.get(here, NOTHING)
    return {
        "menus": menu,
        "done_J": done,
        "left_J": menu.work_left(phase, done, state.job.work),
        "gpu_hours_J": menu.gpu_hours_left(done, state.job.work) / state.job.weight,
        "attained_gpu_s_J": state.attained_gpu_s(NOW_S),
        "kept_s_J": NOW_S - state.held_since_s if state.gpus else 0.0,
        "pinned_J": state.shape is not None and (state.held_since_s >= NOW_S or state.as_of_s > NOW_S),
        "waits_J": state.shape is None or state.phase is Phase.WAITING,
        "deadline_s_J": math.inf if state.job.deadline_s is None else state.job.deadline_s,
        "held_J": own if state.phase in SETTLED and own != OFF_MENU else NOTHING,
        "own_J": own,
        "whole_J": whole,
    }


@settings(max_examples=examples(80))
@given(st.lists(states(), min_size=1, max_size=5), st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([None, 2.5]))
def test_side_by_side_is_as_one_by_one(many, share, worth_usd):
    jobs = read_jobs(many, SITES, NOW_S)
    for row, state in enumerate(many):
        for name, fact in alone(state).items():
            assert getattr(jobs, name)[row] == fact, name
        menu = jobs.menus[row]
        assert jobs.kinds[jobs.kind_J[row]] == (menu, menu.phase(state.done_at(NOW_S)))
    price = TimePrice(3.3, share)
    for value in (ValueOfTime(price), ValueOfTime(price, HourWorth(worth_usd, (1.5, 4.0), (1.5, 4.0)))):
        one_by_one = [value.of(state, menu) for state, menu in zip(many, jobs.menus, strict=True)]
        assert value.of_all(jobs).tolist() == one_by_one
    some = jobs.take(list(range(0, len(many), 2)))
    assert list(some.states) == many[::2]
    assert np.array_equal(some.done_J, jobs.done_J[::2])
    assert [some.kinds[at][0] for at in some.kind_J] == list(some.menus)


def test_a_state_that_an_event_has_replaced_is_read_anew():
    job = a_job(work=100.0, speed=Linear(), gpus=1, max_gpus=1)
    before = JobState(job=job, seq=0, phase=Phase.RUNNING, shape=Shape("t", 1), runs_in=Shape("t", 1), gpu="T4", gpus=1)
    runs = replace(before, spread=(1,))
    assert read_jobs([runs], SITES, 10.0).done_J.tolist() == [10.0]
    assert read_jobs([runs], SITES, 20.0).done_J.tolist() == [20.0]
    assert read_jobs([replace(runs, done=50.0, as_of_s=20.0)], SITES, 30.0).done_J.tolist() == [60.0]
    assert read_jobs([replace(runs, phase=Phase.STOPPING)], SITES, 30.0).done_J.tolist() == [0.0]


def forget():
    """All that was read."""
    _known.cache_clear()
    _latest[0] = _SeenSites(())


@settings(max_examples=examples(60))
@given(st.lists(states(), min_size=1, max_size=6), st.data())
def test_whatever_was_read_last_jobs_stand_as_if_nothing_had_been(many, data):
    """Some of the states are taken over, in another order; some are gone, some new, some of a job that has changed."""
    forget()
    taken = data.draw(st.permutations([each for each in many if data.draw(st.booleans())]))
    changed = [replace(each, done=0.0) if data.draw(st.booleans()) else each for each in taken]
    now = [*changed, *data.draw(st.lists(states(), min_size=not changed, max_size=2))]
    read_jobs(many, SITES, NOW_S - 10.0)
    taken_over = read_jobs(now, SITES, NOW_S)
    forget()
    anew = read_jobs(now, SITES, NOW_S)
    for each in fields(anew):
        ours, theirs = getattr(taken_over, each.name), getattr(anew, each.name)
        if each.name not in {"kinds", "kind_J"}:
            assert list(ours) == list(theirs), each.name
    assert set(taken_over.kinds) == set(anew.kinds)  # none that nobody is of, and each of these once
    assert len(taken_over.kinds) == len(anew.kinds)
    own = [[each.kinds[at] for at in each.kind_J] for each in (taken_over, anew)]
    assert own[0] == own[1]


def test_nobody_can_change_what_is_taken_over():
    jobs = read_jobs([JobState(job=a_job(work=100.0), seq=0)], SITES, NOW_S)
    with pytest.raises(ValueError, match="read-only"):
        jobs.weight_J[0] = 2.0
