"""What is left of a job of unknown size, against the distribution that the finished ones were drawn from."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.plan import JobState
from sublet.perf.sizes import UNKNOWN_H, Sizes, had_h
from sublet.testing.values import a_job

DRAWN = 4000
SIGMA = 0.8  # of the logarithm; the median is an hour


def lognormal(share):
    return math.exp(SIGMA * NormalDist().inv_cdf(share))


@pytest.mark.parametrize("had", [0.0, 0.3, 1.0, 2.0, 4.0])
def test_the_mean_residual_work_given_what_it_has_had_is_that_of_the_planted_distribution(had):
    """E[S | S > a] of a lognormal is exp(s^2 / 2) Phi(s - ln a / s) / Phi(-ln a / s)."""
    sizes = Sizes(tuple(lognormal((at + 0.5) / DRAWN) for at in range(DRAWN)))
    z = math.log(had) / SIGMA if had else -math.inf
    upper = NormalDist().cdf(SIGMA - z) / NormalDist().cdf(-z) if had else 1.0
    assert sizes.expected_h(had) == pytest.approx(math.exp(SIGMA**2 / 2.0) * upper, rel=0.01)


@given(st.lists(st.floats(0.01, 100.0), max_size=8), st.floats(0.0, 150.0), st.floats(0.0, 50.0))
def test_who_has_had_more_is_never_thought_smaller_and_never_at_its_end(hours, had, more):
    sizes = Sizes(tuple(hours))
    assert sizes.expected_h(had + more) >= sizes.expected_h(had) * (1.0 - 1e-12)
    if had > 0.0:
        assert sizes.expected_h(had) > had


def test_without_any_that_finished_an_hour_is_assumed_and_then_as_much_again():
    assert [Sizes().expected_h(had) for had in (0.0, 0.4, 3.0)] == [UNKNOWN_H, UNKNOWN_H, 6.0]
    assert "no job of its group has finished" in Sizes().describe(0.0)


def test_where_the_size_comes_from_is_said_with_its_quantiles():
    said = Sizes((2.0,) * 8 + (4.0,) * 4).describe(1.0)
    assert "learned from 12 finished jobs of this group: median 2 h, p90 4 h" in said
    assert "it has had 1 h of one worker, and 1.7 h more are expected" in said


def test_a_wider_job_has_had_more_and_waiting_counts_for_nothing():
    state = JobState(
        job=a_job(), seq=0, stints=((0.0, 3600.0, 1), (7200.0, 10_800.0, 4)), gpus=2, held_since_s=20_000.0
    )
    speedup = {gpus: 1.0 / (0.05 + 0.95 / gpus) for gpus in (1, 2, 4)}
    assert had_h(state, 23_600.0) == pytest.approx(speedup[1] + speedup[4] + speedup[2])
    assert had_h(state, 20_000.0) == pytest.approx(speedup[1] + speedup[4])
