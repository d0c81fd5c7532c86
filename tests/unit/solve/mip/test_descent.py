"""The walk to cheap prices: what it says is a bound, near the lowest, and enough for most of what is asked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sublet.solve.mip.moves import allows, best_moves, descend, lowest_bound
from tests.rigs.coupled import by_use

# J jobs, C choices, R limits


def a_cluster(seed, *, jobs, choices=8, pools=3):
    """Each choice takes some GPUs of one pool; to wait is the first and gains nothing."""
    rng = np.random.default_rng(seed)
    gpus_JC = rng.integers(1, 5, size=(jobs, choices))
    gain_JC = gpus_JC ** rng.uniform(0.3, 1.0, size=(jobs, 1)) * rng.uniform(0.5, 2.0, size=(jobs, choices))
    gain_JC[:, 0], gpus_JC[:, 0] = 0.0, 0
    pool_JC = rng.integers(pools, size=(jobs, choices))
    use_RJC = np.where(pool_JC == np.arange(pools)[:, None, None], gpus_JC, 0).astype(float)
    return gain_JC, use_RJC, rng.integers(1, jobs + 2, size=pools).astype(float)


def best_of_all(gain_JC, use_RJC, limit_R):
    """By trying everything."""
    jobs, choices = gain_JC.shape
    job_J = np.arange(jobs)
    return max(
        float(gain_JC[job_J, column_J].sum())
        for column_J in map(list, itertools.product(range(choices), repeat=jobs))
        if (use_RJC[:, job_J, column_J].sum(axis=1) <= limit_R).all()
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("known", [True, False])
def test_what_it_says_is_never_below_the_best_that_there_is(seed, known):
    asked = a_cluster(seed, jobs=4, choices=6)
    best = best_of_all(*asked)
    found = descend(*asked, reached=best if known else -np.inf, near=0.0)
    assert found.bound >= best - 1e-9
    assert (found.price_R >= 0).all()
    assert found.bound == pytest.approx(found.price_R @ asked[2] + found.worth_JC.max(axis=1).sum())


def test_most_walks_end_near_the_lowest_bound():
    shares = []
    for seed in range(60):
        asked = a_cluster(seed, jobs=10, choices=30)
        shares.append(descend(*asked, reached=-np.inf, near=0.0).bound / lowest_bound(*asked).bound)
    assert min(shares) >= 1 - 1e-9
    assert np.median(shares) < 1.005
    assert np.quantile(shares, 0.9) < 1.02


def test_it_stops_where_enough_is_proven():
    gain_JC, use_RJC, limit_R = a_cluster(1, jobs=10, choices=30)
    begin = gain_JC.max(axis=1).sum()  # at no price at all
    assert descend(gain_JC, use_RJC, limit_R, reached=begin / 1.01, near=0.02).bound == pytest.approx(begin)


@pytest.mark.parametrize(("reached", "bound"), [(-np.inf, 9.0), (8.0, 9.0), (9.5, 9.5)])
def test_a_step_goes_as_far_as_would_reach_what_is_hoped_for(monkeypatch, reached, bound):
    """Two that gain 5 each want one of one: the bound falls from 10 by as much as the price rises, until that is 5.

    A tenth less is hoped for, but no less than what is known to be reachable.
    """
    monkeypatch.setattr("sublet.solve.mip.moves.STEPS", 1)
    found = descend(np.array([[0.0, 5.0]] * 2), np.array([[[0.0, 1.0]] * 2]), np.ones(1), reached=reached, near=0.0)
    assert found.bound == pytest.approx(bound)
    assert found.price_R == pytest.approx([10.0 - bound])


@pytest.mark.parametrize(("reached", "bound"), [(9.0, 10.0), (8.9, 8.9)])
def test_just_near_enough_is_near_enough(reached, bound):
    asked = np.array([[0.0, 5.0]] * 2), np.array([[[0.0, 1.0]] * 2]), np.ones(1)
    assert descend(*asked, reached=reached, near=0.1).bound <= bound + 0.1 * bound
    assert (descend(*asked, reached=reached, near=0.1).bound == 10.0) == (bound == 10.0)


def test_where_more_was_hoped_for_than_there_is_less_is_hoped_for_next():
    """The lowest bound is 5 and nothing is known to be reachable: steps that go too far get smaller, not endless."""
    for gains in ([[0.0, 5.0]] * 2, [[0.0, 5.0], [0.0, 4.0], [0.0, 1.0]]):
        asked = np.array(gains), np.array([[[0.0, 1.0]] * len(gains)]), np.ones(1)
        lowest = lowest_bound(*asked).bound
        assert lowest <= descend(*asked, reached=-np.inf, near=0.0).bound <= 1.02 * lowest


def test_a_price_of_what_is_not_short_stays_at_nothing():
    """One limit is short and the other is not: that one alone has a price, and the step is as long as for it alone."""
    gain, use = np.array([[0.0, 5.0]] * 2), np.array([[[0.0, 1.0]] * 2] * 2)
    alone = descend(gain, use[:1], np.ones(1), reached=5.0, near=0.0)
    both = descend(gain, use, np.array([1.0, 3.0]), reached=5.0, near=0.0)
    assert both.price_R.tolist() == [*alone.price_R.tolist(), 0.0]
    assert both.bound == alone.bound == pytest.approx(5.0)


def test_nothing_is_short_and_nothing_has_a_price():
    gain_JC, use_RJC, _ = a_cluster(1, jobs=5)
    found = descend(gain_JC, use_RJC, np.full(3, 1e3), reached=-np.inf, near=0.0)
    assert found.price_R.tolist() == [0.0] * 3
    assert found.bound == pytest.approx(gain_JC.max(axis=1).sum())


@pytest.mark.parametrize("seed", range(12))
def test_choices_that_need_be_no_better_are_as_near_as_they_say(seed):
    gain_JC, use_RJC, limit_R = a_cluster(seed, jobs=4, choices=6)
    asked = by_use(gain_JC, [int(most) for most in limit_R], use_RJC)
    found, best = best_moves(asked, tolerance=0.05, rough=True), best_of_all(gain_JC, use_RJC, limit_R)
    assert allows(asked, found.column_J)
    assert best * 0.95 - 1e-9 <= found.total <= best + 1e-9 <= found.bound + 2e-9


@pytest.mark.parametrize("start", [None, [0] * 12])
def test_most_are_answered_by_prices_alone(start):
    """Also from a start that is far from good."""
    ways = []
    for seed in range(40):
        gain_JC, use_RJC, limit_R = a_cluster(seed, jobs=12, choices=20)
        asked = by_use(gain_JC, [int(most) for most in limit_R], use_RJC)
        ways.append(best_moves(asked, start=start, tolerance=0.02, rough=True).method)
    assert ways.count("prices") >= 20
