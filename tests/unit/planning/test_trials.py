"""What a try costs, against all outcomes one by one; and who does not try."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.perf.learned import MEASURED_DOUBT, Learned, Measured
from sublet.perf.preemption import NO_RECLAIMS
from sublet.planning.menu import menu_of
from sublet.planning.options import LEARNS_H, _doubt, options_of, trial_costs
from sublet.planning.terms import Site
from sublet.testing.values import a_job

KNOWN = MEASURED_DOUBT
QUANTILES = np.array([NormalDist().inv_cdf((at + 0.5) / 4000) for at in range(4000)])


def tried(cost, way, hours, doubt, belief=(0, 1)):
    arrays = (np.array(each, dtype=float) for each in (cost, way, hours, doubt))
    return trial_costs(*arrays, np.array(belief), 0)


@given(st.floats(0.6, 1.5), st.floats(0.0, 0.1), st.floats(0.12, 0.5), st.floats(0.005, 20.0))
def test_a_try_costs_the_mean_of_going_there_and_coming_back_where_that_is_better(mean, way, doubt, hours):
    found = tried([1.0, mean], [0.0, way], [hours, hours], [KNOWN, doubt])
    error = mean * (doubt**2 - KNOWN**2) ** 0.5
    costs = mean + error * QUANTILES
    back = 1.0 + 2.0 * way + KNOWN * float(np.hypot(1.0, mean))
    part = min(1.0, LEARNS_H / hours)  # of its work is done before it knows
    brute = float((part * costs + (1.0 - part) * np.minimum(costs, back)).mean())
    if found is None:
        assert brute > 1.0 - 2e-3
    else:
        assert found[0] == np.inf
        assert found[1] == pytest.approx(brute, abs=2e-3)


@given(st.floats(0.5, 3.0), st.floats(0.0, 0.1), st.floats(0.11, 0.5))
def test_who_has_gone_to_try_does_not_return_before_it_knows(mean, way, doubt):
    """On the other shape, unmeasured, the first is better only by more than what is believed may be wrong by."""
    if tried([1.0, mean], [0.0, way], [9.0, 9.0], [KNOWN, doubt]) is not None:
        assert 1.0 + np.hypot(doubt * mean, KNOWN) >= mean - way


def test_nobody_tries_a_second_shape_before_the_first_is_known():
    facts = ([1.0, 1.1, 0.9], [0.0, 0.01, 0.01], [9.0, 9.0, 9.0])
    assert tried(*facts, [KNOWN, 0.2, 0.5], belief=(0, 1, 2)) is not None
    assert tried(*facts, [0.2, KNOWN, 0.5], belief=(0, 1, 2)) is None


def test_shapes_that_are_known_as_well_as_the_one_it_has_teach_nothing():
    assert tried([1.0, 0.9], [0.0, 0.0], [9.0, 9.0], [KNOWN, KNOWN], belief=(3, 3)) is None
    assert tried([1.0, 0.9], [0.0, 0.0], [9.0, 9.0], [KNOWN, 0.4], belief=(3, 4)) is not None


@given(st.floats(0.6, 1.5), st.floats(0.0, 0.1), st.floats(0.12, 0.5), st.floats(0.005, 20.0))
def test_another_batch_on_as_many_gpus_is_left_sooner_where_it_is_slower(mean, way, doubt, hours):
    """An error of what both have in common does not keep it there."""
    found = tried([1.0, mean], [0.0, way], [hours, hours], [KNOWN, doubt], belief=(3, 3))
    costs = mean + mean * (doubt**2 - KNOWN**2) ** 0.5 * QUANTILES
    back = 1.0 + 2.0 * way + KNOWN * abs(mean - 1.0)
    part = min(1.0, LEARNS_H / hours)
    brute = float((part * costs + (1.0 - part) * np.minimum(costs, back)).mean())
    if found is None:
        assert brute > 1.0 - 2e-3
    else:
        assert found[1] == pytest.approx(brute, abs=2e-3)


@given(st.floats(0.5, 3.0), st.floats(0.0, 0.1), st.floats(0.11, 0.5))
def test_who_tries_another_batch_does_not_return_before_it_knows(mean, way, doubt):
    """As `options` has it: what keeps it where it is, is how much less the batch that it has is known."""
    if tried([1.0, mean], [0.0, way], [9.0, 9.0], [KNOWN, doubt], belief=(3, 3)) is None:
        return
    cost_C = np.array([mean - way, 1.0 + way])  # now it has the other, and the first is the way back
    stays = _doubt(np.array([doubt, KNOWN]), np.array([3, 3]), cost_C, 0)
    assert cost_C[1] + stays[1] >= cost_C[0]


SITE = Site("T4x1:spot", "T4", 1, NO_RECLAIMS, 0.0, 8)


@pytest.mark.parametrize(
    ("facts", "tries"),
    [({}, True), ({"deadline_s": 1e6}, False), ({"purse_left_usd": 1e6}, False)],
    ids=["any", "with a deadline", "with a purse of its own"],
)
def test_who_has_promised_to_be_in_time_or_to_cost_no_more_does_not_try(facts, tries):
    one = Measured(gpu="T4", workers=1, rate=1.0 / 36_000.0)
    speed = Learned(guess=1.0 / 36_000.0, measured=(one,))
    job = a_job("a", work=1.0, speed=speed, max_gpus=4, restart_s=10.0, **facts)
    shape = Shape("T4x1:spot", 1)
    state = JobState(job=job, seq=0, phase=Phase.RUNNING, shape=shape, runs_in=shape, gpu="T4", gpus=1, spread=(1,))
    options = options_of(menu_of(job, (SITE,)), state, 0.0, 0.12, (1.0,))
    assert (options.gain_C is not None) == tries
    if tries:
        assert options.gain_C[options.best] > 0.0
