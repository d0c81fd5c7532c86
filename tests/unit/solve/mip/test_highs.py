"""One choice per job by branch and bound, beside trying everything: what is chosen, proven, and in the way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sublet.solve.mip.highs import choose, excess

# J jobs, C choices, R limits


def drawn(seed, *, jobs=4, choices=4, limits=2, scale=1.0):
    """Some choices are not allowed, gains may be negative, and not every job may wait."""
    rng = np.random.default_rng(seed)
    gain_JC = rng.normal(0.0, 5.0, (jobs, choices)) * scale
    gain_JC[:, 1:][rng.random((jobs, choices - 1)) < 0.3] = -np.inf
    use_RJC = rng.integers(0, 4, (limits, jobs, choices)).astype(float)
    use_RJC[:, : jobs // 2, 0] = 0.0
    return gain_JC, use_RJC, rng.integers(1, 2 * jobs, limits).astype(float)


def every_way(gain_JC, use_RJC):
    """All ways of choosing among what is allowed: the total, what is used, and the columns."""
    job_J = np.arange(len(gain_JC))
    for column in itertools.product(range(gain_JC.shape[1]), repeat=len(gain_JC)):
        if (total := float(gain_JC[job_J, column].sum())) > -np.inf:
            yield total, use_RJC[:, job_J, column].sum(axis=1), list(column)


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e8])
@pytest.mark.parametrize("seed", range(15))
def test_the_best_of_all_that_fit_is_chosen_however_large_gains_are(seed, scale):
    gain_JC, use_RJC, limit_R = drawn(seed, scale=scale)
    fitting = [(total, column) for total, used_R, column in every_way(gain_JC, use_RJC) if (used_R <= limit_R).all()]
    found = choose(gain_JC, use_RJC, limit_R)
    if not fitting:
        assert (found.column_J, found.bound) == (None, -np.inf)
        return
    best, column = max(fitting)
    assert found.column_J.tolist() == column
    assert found.bound == pytest.approx(best, abs=1e-6 * scale)
    again = choose(gain_JC, use_RJC, limit_R, start=np.array(fitting[0][1]))
    assert again.column_J.tolist() == column


@pytest.mark.parametrize("seed", range(15))
def test_what_is_enough_under_a_bound_is_enough(seed):
    gain_JC, use_RJC, limit_R = drawn(seed, jobs=5, choices=5)
    fitting = [total for total, used_R, _ in every_way(gain_JC, use_RJC) if (used_R <= limit_R).all()]
    found = choose(gain_JC, use_RJC, limit_R, enough=2.0)
    if fitting:
        total = gain_JC[np.arange(5), found.column_J].sum()
        assert total <= max(fitting) <= found.bound + 1e-6
        assert found.bound - total <= 2.0 + 1e-6


def test_who_needs_no_better_is_not_searched_for_any_further():
    """Within a thousand under a bound is whatever is found first."""
    short = []
    for seed in range(3, 8):
        gain_JC, use_RJC, limit_R = drawn(seed, jobs=40, choices=12, limits=3)
        job_J, start_J = np.arange(40), np.zeros(40, dtype=np.intp)
        limit_R = np.maximum(limit_R, use_RJC[:, job_J, start_J].sum(axis=1))
        best, some = (choose(gain_JC, use_RJC, limit_R, start=start_J, enough=enough) for enough in (0.0, 1e3))
        short.append(gain_JC[job_J, best.column_J].sum() - gain_JC[job_J, some.column_J].sum())
    assert min(short) >= -1e-6
    assert np.median(short) > 50.0


def test_where_nothing_is_to_be_chosen_nothing_is_searched():
    one, use = np.array([[2.0, -np.inf], [-np.inf, 3.0]]), np.ones((1, 2, 2))
    fits, too_many = choose(one, use, np.array([2.0])), choose(one, use, np.array([1.0]))
    assert (fits.column_J.tolist(), fits.bound, fits.ran_s) == ([0, 1], 5.0, 0.0)
    assert (too_many.column_J, too_many.bound, too_many.ran_s) == (None, -np.inf, 0.0)


@pytest.mark.parametrize("seed", [3, 5])
def test_without_time_there_is_the_start_and_nothing_is_proven_that_does_not_hold(seed):
    gain_JC, use_RJC, limit_R = drawn(seed, jobs=40, choices=12, limits=3)
    job_J, start_J = np.arange(40), np.zeros(40, dtype=np.intp)
    limit_R = np.maximum(limit_R, use_RJC[:, job_J, start_J].sum(axis=1))
    hurried, best = (choose(gain_JC, use_RJC, limit_R, start=start_J, time_limit_s=limit) for limit in (0.0, np.inf))
    most = gain_JC[job_J, best.column_J].sum()
    assert hurried.column_J.tolist() == start_J.tolist()
    assert hurried.bound >= most - 1e-6
    assert best.bound == pytest.approx(most, abs=1e-5)
    assert choose(gain_JC, use_RJC, limit_R, time_limit_s=0.0).column_J is None


@pytest.mark.parametrize("seed", range(15))
def test_what_is_in_the_way_is_as_little_as_can_be(seed):
    gain_JC, use_RJC, _ = drawn(seed, jobs=4, choices=3)
    use_RJC = use_RJC + 1.0  # nobody may wait
    limit_R = np.array([3.0, 5.0])
    found = excess(gain_JC, use_RJC, limit_R)
    least = min(float(np.maximum(used_R - limit_R, 0.0).sum()) for _, used_R, _ in every_way(gain_JC, use_RJC))
    assert (found >= 0.0).all()
    assert found.sum() == pytest.approx(least)
    assert any((used_R <= limit_R + found).all() for _, used_R, _ in every_way(gain_JC, use_RJC))
