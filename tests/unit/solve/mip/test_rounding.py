"""Choices that are rounded from prices keep all limits, and HiGHS is asked only where they are not near enough."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sublet.errors import Infeasible
from sublet.solve.mip import moves
from sublet.solve.mip.moves import MANY, Coupled, _solve_coupled, allows, best_moves, lowest_bound, near, total
from tests.rigs.coupled import by_use


def several_pools(seed, jobs=4, choices=4, pools=3):
    """Gains and uses at random, with a choice that uses nothing."""
    rng = np.random.default_rng(seed)
    gain = np.concatenate((np.zeros((jobs, 1)), rng.uniform(0.0, 9.0, (jobs, choices - 1))), axis=1)
    use = np.concatenate((np.zeros((pools, jobs, 1)), rng.integers(0, 4, (pools, jobs, choices - 1))), axis=2)
    return by_use(gain, rng.integers(0, 2 * jobs, pools).tolist(), use)


def best_of_all(asked):
    jobs, choices = asked.gain_JC.shape
    every = (np.array(each) for each in itertools.product(range(choices), repeat=jobs))
    return max(total(asked, each) for each in every if allows(asked, each))


def rounded(asked):
    proof = lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R)
    loss_JC = proof.worth_JC.max(axis=1, keepdims=True) - proof.worth_JC
    return near(loss_JC.argmin(axis=1), asked.gain_JC, loss_JC, asked.use_RJC, asked.limit_R, np.inf)


def by_rounding(asked, tolerance):
    """As if there were many jobs."""
    return _solve_coupled(asked, None, tolerance=tolerance, time_limit_s=np.inf, near_enough=True)


@pytest.mark.parametrize("tolerance", [0.3, 0.02, 1e-6])
def test_what_is_near_enough_is_no_further_from_the_best_of_all_than_it_may_be(tolerance):
    for seed in range(12):
        asked = several_pools(seed)
        found, best = by_rounding(asked, tolerance), best_of_all(asked)
        assert allows(asked, found.column_J)
        assert found.bound >= best - 1e-9
        assert found.total >= best - tolerance * abs(found.bound) - 1e-9


@pytest.mark.parametrize("tolerance", [0.1, 0.02])
def test_a_rough_answer_from_a_start_is_no_worse_than_the_start_and_near_the_best_of_all(tolerance):
    better = 0
    for seed in range(12):
        asked = several_pools(seed)
        start_J = np.zeros(len(asked.gain_JC), dtype=np.intp)  # all may wait
        found = best_moves(asked, start=start_J, tolerance=tolerance, rough=True)
        assert allows(asked, found.column_J)
        assert found.total >= max(total(asked, start_J), best_of_all(asked) - tolerance * abs(found.bound) - 1e-9)
        better += found.total > total(asked, start_J)
    assert better


def test_rounding_keeps_all_limits_and_nobody_could_gain_alone():
    for seed in range(12):
        asked = several_pools(seed, jobs=12, choices=6)
        column_J = rounded(asked)
        assert column_J is not None  # all may wait
        assert allows(asked, column_J)
        for job, column in itertools.product(range(12), range(6)):
            other_J = column_J.copy()
            other_J[job] = column
            assert not allows(asked, other_J) or total(asked, other_J) <= total(asked, column_J)


def test_many_jobs_are_rounded_to_a_proof_without_branch_and_bound(monkeypatch):
    monkeypatch.setattr(moves, "choose", lambda *_, **__: pytest.fail("HiGHS was asked"))
    asked = several_pools(3, jobs=MANY, choices=30)
    found = best_moves(asked, tolerance=0.002)
    assert found.gap <= 0.002 * found.bound
    assert allows(asked, found.column_J)


def test_who_gives_a_start_gets_sharp_prices():
    asked = several_pools(3, jobs=MANY, choices=30)
    found = best_moves(asked, start=np.zeros(MANY), tolerance=0.3)
    assert found.price_R.tolist() == lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R).price_R.tolist()


def test_where_nothing_fits_nothing_is_rounded_and_the_limit_is_named():
    asked = by_use([[1.0], [2.0]], [3, 9], [[[2], [2]], [[1], [1]]])
    assert rounded(asked) is None
    with pytest.raises(Infeasible, match="pool 0"):
        by_rounding(asked, 0.1)


def test_uses_told_by_row_are_the_uses_told_by_pool():
    rng = np.random.default_rng(1)
    row_KJC, units_KJC = rng.integers(0, 3, (2, 5, 7)), rng.integers(0, 4, (2, 5, 7))
    use_PJC = np.zeros((3, 5, 7))
    for each in np.ndindex(2, 5, 7):
        use_PJC[row_KJC[each], *each[1:]] += units_KJC[each]
    gain_JC = rng.uniform(0.0, 1.0, (5, 7))
    by_row = Coupled.from_rows(gain_JC, [4] * 3, row_KJC, units_KJC)
    assert by_row.use_RJC.tolist() == use_PJC.tolist()
    assert by_row.size_JC.tolist() == use_PJC.sum(axis=0).tolist()


def test_nobody_is_left_out_of_what_is_left_over_where_one_is_worth_more_than_any_tolerance():
    """From starts at random, which may be within the tolerance as they are."""
    kept = 0
    for seed in range(300):
        asked = several_pools(seed, jobs=6, choices=5)
        gain_JC = asked.gain_JC * np.where(np.arange(6) == 0, 1e6, 1.0)[:, None]
        asked = by_use(gain_JC, asked.limit_R.astype(int).tolist(), asked.use_RJC)
        rng, start_J = np.random.default_rng(seed), np.zeros(6, dtype=np.intp)
        for job in rng.permutation(6)[:4]:  # whoever comes first takes what there is
            tried_J = start_J.copy()
            tried_J[job] = rng.integers(5)
            start_J = tried_J if allows(asked, tried_J) else start_J
        found = best_moves(asked, start=start_J, tolerance=0.1, rough=True)
        kept += found.method == "prices"
        for job, column in itertools.product(range(6), range(5)):
            other_J = found.column_J.copy()
            other_J[job] = column
            assert not allows(asked, other_J) or total(asked, other_J) <= found.total * (1.0 + 1e-9)
    assert kept > 200
