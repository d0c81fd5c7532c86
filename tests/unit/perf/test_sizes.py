"""What is left of a job of unknown size, against the distribution that the finished ones were drawn from."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.demand import Ended, Needed
from sublet.domain.plan import JobState
from sublet.perf.sizes import OUTLIVED, Had, gpu_rate_of, had_by, left_by_all_h, left_by_group_h
from sublet.testing.values import a_job

DRAWN = 4000
SIGMA = 0.8  # of the logarithm; the median is an hour
HAD = (0.0, 0.3, 1.0, 2.0, 4.0)


def lognormal(share):
    return math.exp(SIGMA * NormalDist().inv_cdf(share))


def longer_h(had):
    """E[S | S > a] of a lognormal is exp(s^2 / 2) Phi(s - ln a / s) / Phi(-ln a / s)."""
    z = math.log(had) / SIGMA if had else -math.inf
    upper = NormalDist().cdf(SIGMA - z) / NormalDist().cdf(-z) if had else 1.0
    return math.exp(SIGMA**2 / 2.0) * upper


PLANTED = tuple(lognormal((at + 0.5) / DRAWN) for at in range(DRAWN))


@pytest.mark.parametrize("had", HAD)
def test_the_mean_residual_work_given_what_it_has_had_is_that_of_the_planted_distribution(had):
    left_h = left_by_group_h(Had(had, had), PLANTED, otherwise_h=99.0, most_had_h=99.0)
    assert had + left_h == pytest.approx(longer_h(had), rel=0.01)
    ended = Ended(tuple(Needed("", 1.0, gpu_h) for gpu_h in PLANTED))
    assert had + left_by_all_h(had, ended, newcomer_h=0.1) == pytest.approx(longer_h(had), rel=0.02)


@given(st.lists(st.floats(0.01, 100.0), max_size=8), st.floats(0.0, 150.0), st.floats(0.0, 50.0), st.floats(0.0, 90.0))
def test_who_has_had_more_is_never_thought_smaller_and_never_at_its_end(hours, had, more, sibling_h):
    ended = Ended(tuple(Needed("", 1.0, gpu_h) for gpu_h in hours))

    def size_h(works, had_h):
        otherwise_h = left_by_all_h(had_h, ended, newcomer_h=1.0)
        most_h = max(had_h, sibling_h)
        return had_h + left_by_group_h(Had(had_h, had_h), works, otherwise_h=otherwise_h, most_had_h=most_h)

    for works in (sorted(hours), ()):
        assert size_h(works, had + more) >= size_h(works, had) * (1.0 - 1e-8)
        if had > 0.0 or not works:
            assert size_h(works, had) > had


def test_one_that_has_outlived_its_group_is_near_its_end_and_what_a_gpu_does_is_reckoned_with():
    assert left_by_group_h(Had(8.0, 9.0), (1.0, 6.0), gpu_rate=4.0, otherwise_h=0.0, most_had_h=9.0) == (
        OUTLIVED * 8.0 / 4.0
    )
    assert left_by_group_h(Had(2.0, 9.0), (1.0, 6.0), gpu_rate=4.0, otherwise_h=0.0, most_had_h=9.0) == 1.0


def test_a_wider_job_has_had_more_and_waiting_counts_for_nothing():
    stints = ((0.0, 3600.0, 1), (7200.0, 10_800.0, 4))
    state = JobState(job=a_job(), seq=0, stints=stints, gpu_s=5 * 3600.0, gpus=2, held_since_s=20_000.0)
    speedup = {gpus: 1.0 / (0.05 + 0.95 / gpus) for gpus in (1, 2, 4)}
    assert had_by(state, 23_600.0) == pytest.approx((speedup[1] + speedup[4] + speedup[2], 7.0))
    assert had_by(state, 20_000.0) == pytest.approx((speedup[1] + speedup[4], 5.0))
    assert gpu_rate_of(1) == pytest.approx(1.0)
    assert gpu_rate_of(4) == pytest.approx(speedup[4] / 4)
