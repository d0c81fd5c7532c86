"""Prices with the lowest bound: as low as the linear relaxation, and never below what can be had."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from sublet.solve.mip import moves
from sublet.solve.mip.moves import bound_at, lowest_bound


def drawn(seed, *, limits):
    """Some choices cannot be had, gains may be negative, every job has a choice that uses nothing."""
    rng = np.random.default_rng(seed)
    jobs, choices = int(rng.integers(1, 7)), int(rng.integers(2, 6))
    gain_JC = rng.normal(0.0, 5.0, (jobs, choices))
    gain_JC[:, 1:][rng.random((jobs, choices - 1)) < 0.2] = -np.inf
    use_RJC = rng.integers(0, 4, (limits, jobs, choices)).astype(float)
    use_RJC[:, :, 0] = 0.0
    return gain_JC, use_RJC, rng.integers(1, 8, limits).astype(float)


def relaxed(gain_JC, use_RJC, limit_R):
    """By another solver: each job has shares of its choices that add up to one."""
    jobs, choices = gain_JC.shape
    had = np.isfinite(gain_JC).ravel()
    one = np.kron(np.eye(jobs), np.ones(choices))[:, had]
    found = linprog(
        -gain_JC.ravel()[had], use_RJC.reshape(len(limit_R), -1)[:, had], limit_R, one, np.ones(jobs), method="highs"
    )
    return -found.fun


@pytest.mark.parametrize("limits", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_bound_is_that_of_the_relaxation(seed, limits):
    asked = drawn(seed, limits=limits)
    found, best = lowest_bound(*asked), relaxed(*asked)
    assert found.bound == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert (found.price_R >= 0.0).all()
    assert found.bound == bound_at(*asked, found.price_R)[0].bound


@pytest.mark.parametrize("seed", range(8))
def test_a_rough_bound_holds_and_is_as_rough_as_was_asked_for(seed):
    asked = drawn(seed, limits=2)
    rough, best = lowest_bound(*asked, sharp=0.05).bound, relaxed(*asked)
    assert best - 1e-9 <= rough <= best + 0.05 * max(abs(rough), 0.05) + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_from_any_prices_the_slope_lies_below_the_bound_everywhere(seed):
    asked, rng = drawn(seed, limits=2), np.random.default_rng(seed)
    here_R = rng.uniform(0.0, 4.0, 2)
    here, slope_R = bound_at(*asked, here_R)
    for there_R in rng.uniform(0.0, 9.0, (20, 2)):
        assert bound_at(*asked, there_R)[0].bound >= here.bound + slope_R @ (there_R - here_R) - 1e-9
    assert (here.losses() >= 0.0).all()
    assert (here.losses().min(axis=1) == 0.0).all()


@pytest.mark.parametrize("limits", [1, 2, 3])
def test_a_few_tries_are_enough_and_where_they_are_no_more_are_made(monkeypatch, limits):
    tries = []
    monkeypatch.setattr(moves, "bound_at", lambda *asked: tries.append(1) or bound_at(*asked))
    for seed in range(8):
        lowest_bound(*drawn(seed, limits=limits))
    assert len(tries) <= 8 * 12  # of a hundred that it may make each time


def test_where_all_fits_nothing_has_a_price():
    gain_JC, use_RJC, _ = drawn(3, limits=2)
    found = lowest_bound(gain_JC, use_RJC, np.full(2, 1e3))
    assert found.price_R.tolist() == [0.0, 0.0]
    assert found.bound == pytest.approx(gain_JC.max(axis=1).sum())
