from __future__ import annotations

import doctest
import importlib
import itertools
import math

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.knapsack.split import best_split
from sublet.solve.mip.highs import choose
from sublet.solve.mip.moves import NOT_RUNNING, Coupled, _solve_coupled, best_moves
from sublet.solve.mip.prices import lowest_bound

NO = -math.inf
WIDTH = np.arange(17.0)


def speeds(jobs, seed=0, beyond=0.8):
    """A power of the width, slower beyond one node of four."""
    exponent = np.random.default_rng(seed).uniform(0.5, 0.95, (jobs, 1))
    return WIDTH**exponent * np.where(WIDTH > 4, beyond, 1.0)


def by_highs(asked, start=None):
    """All limits in one program with all choices."""
    return _solve_coupled(asked, start, tolerance=0.0, time_limit_s=math.inf)


@pytest.mark.parametrize("module", ["moves", "problem", "prices", "highs"])
def test_the_examples_in_the_docstrings_hold(module):
    failed, tried = doctest.testmod(importlib.import_module(f"sublet.solve.mip.{module}"))
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("seed", range(4))
def test_where_no_limit_ties_jobs_together_moves_are_the_best_split(seed):
    gain = speeds(60, seed)
    exact = best_split(gain, 90, method="rows")
    current = best_split(speeds(60, seed + 10), 90).column_J
    asked = Coupled.from_tables(gain, [90], current=current, most_changes=60)
    quick, slow = best_moves(asked), by_highs(asked)
    assert (quick.method, slow.method) == ("split", "mip")
    assert quick.total == slow.total == pytest.approx(exact.total)
    assert quick.gap == slow.gap == 0.0


@pytest.mark.parametrize("most", [0, 1, 5, 20])
def test_no_more_jobs_change_than_may(most):
    gain = speeds(60, 1)
    current = best_split(speeds(60, 2), 90).column_J
    asked = Coupled.from_tables(gain, [90], current=current, most_changes=most)
    found = best_moves(asked)
    assert found.changes == np.count_nonzero(found.column_J != current)
    assert found.changes <= most
    assert found.method == "mip"
    assert found.gap == 0.0
    whole = choose(asked.gain_JC, asked.use_RJC, asked.limit_R)
    assert found.total == pytest.approx(asked.total(whole.column_J), abs=1e-6)


def test_each_further_change_gains_less_or_nothing():
    gain, current = speeds(60, 1), best_split(speeds(60, 2), 90).column_J
    totals = [
        best_moves(Coupled.from_tables(gain, [90], current=current, most_changes=most)).total for most in (0, 4, 8, 60)
    ]
    assert totals == sorted(totals)
    assert totals[0] == pytest.approx(gain[np.arange(60), current].sum())


def test_starting_a_job_is_no_change():
    asked = Coupled.from_tables([[0.0, 3.0]] * 2, [2], current=[1, NOT_RUNNING], most_changes=0, change_cost=9.0)
    found = best_moves(asked)
    assert found.width_J.tolist() == [1, 1]
    assert (found.changes, found.total) == (0, 6.0)


@pytest.mark.parametrize("seed", range(12))
def test_choices_that_use_several_pools_are_the_best_of_all_that_fit(seed):
    rng = np.random.default_rng(seed)
    jobs, choices, pools = 4, 4, 3
    gain = np.concatenate((np.zeros((jobs, 1)), rng.uniform(0.0, 9.0, (jobs, choices - 1))), axis=1)
    use = np.concatenate((np.zeros((pools, jobs, 1)), rng.integers(0, 4, (pools, jobs, choices - 1))), axis=2)
    capacity = rng.integers(0, 7, pools).tolist()
    every = (np.array(each) for each in itertools.product(range(choices), repeat=jobs))
    fits = (each for each in every if (use[:, range(jobs), each].sum(axis=1) <= capacity).all())
    best = max(gain[range(jobs), each].sum() for each in fits)
    asked = Coupled.from_uses(gain, capacity, use)
    found = best_moves(asked)
    assert found.total == pytest.approx(best)
    assert asked.allows(found.column_J)
    assert found.width_J.tolist() == use.sum(axis=0)[range(jobs), found.column_J].tolist()


def test_a_cost_keeps_jobs_where_they_are_unless_it_pays():
    gain = [[0.0, 1.0, 1.5], [0.0, 2.0, 3.0]]
    stay, go = (Coupled.from_tables(gain, [3], current=[2, 1], change_cost=cost) for cost in (0.3, 0.2))
    assert best_moves(stay).width_J.tolist() == [2, 1]
    assert best_moves(go).width_J.tolist() == [1, 2]
    assert best_moves(go).total == pytest.approx(4.0 - 2 * 0.2)


def test_running_jobs_are_never_paused_if_they_may_not_be():
    gain = [[0.0, 1.0], [0.0, 5.0]]
    paused = best_moves(Coupled.from_tables(gain, [1], current=[1, NOT_RUNNING]))
    kept = best_moves(Coupled.from_tables(gain, [1], current=[1, NOT_RUNNING], may_pause=False))
    assert paused.width_J.tolist() == [0, 1]
    assert kept.width_J.tolist() == [1, 0]


def test_pools_that_share_no_job_are_split_each_for_itself():
    left, right = speeds(30, 3), speeds(20, 4)
    pools = np.repeat([0, 1], [30, 20])[:, None]
    found = best_moves(Coupled.from_tables(np.vstack((left, right)), [40, 50], pools=np.tile(pools, 17)))
    assert found.total == pytest.approx(best_split(left, 40).total + best_split(right, 50).total, abs=1e-6)
    assert found.pool_J.tolist() == [0] * 30 + [1] * 20


def test_a_job_takes_the_pool_with_room():
    # Nothing, one or two units of the slow pool, one or two of the fast pool.
    gain = np.array([[0.0, 1.0, 1.8, 2.0, 3.6], [0.0, 1.0, 1.8, 2.0, 3.6]])
    asked = Coupled.from_tables(gain, [4, 2], sizes=[0, 1, 2, 1, 2], pools=[0, 0, 0, 1, 1])
    found = best_moves(asked)
    assert sorted(zip(found.pool_J.tolist(), found.width_J.tolist(), strict=True)) == [(0, 2), (1, 2)]
    assert found.total == pytest.approx(5.4)


def test_the_prices_bound_what_any_choices_gain():
    gain, current = speeds(60, 1), best_split(speeds(60, 2), 90).column_J
    asked = Coupled.from_tables(gain, [90], current=current, most_changes=5)
    found, proof = best_moves(asked), lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R)
    assert (proof.price_R >= 0).all()
    assert found.total <= proof.bound + 1e-9
    assert proof.bound - found.total < 0.01 * found.total
    assert found.price_R.tolist() == proof.price_R.tolist()


def test_a_start_that_is_allowed_is_never_made_worse_even_without_time():
    gain, current = speeds(60, 1), best_split(speeds(60, 2), 90).column_J
    asked = Coupled.from_tables(gain, [90], current=current, most_changes=5)
    hurried = best_moves(asked, start=current, time_limit_s=0.0)
    assert hurried.total >= asked.total(current) - 1e-9
    assert hurried.bound >= best_moves(asked).total - 1e-6
    again = best_moves(asked, start=best_moves(asked).column_J)
    assert again.total == pytest.approx(best_moves(asked).total)


def test_a_start_that_is_not_allowed_is_passed_over():
    asked = Coupled.from_tables([[0.0, 3.0], [0.0, 2.0]], [1, 0], pools=0)
    assert best_moves(asked, start=[1, 1]).width_J.tolist() == [1, 0]


def test_a_tolerance_is_kept():
    gain, current = speeds(60, 1), best_split(speeds(60, 2), 90).column_J
    asked = Coupled.from_tables(gain, [90], current=current, most_changes=5)
    loose = best_moves(asked, tolerance=0.05)
    assert loose.gap <= 0.05 * loose.bound + 1e-9
    assert loose.bound >= best_moves(asked).total - 1e-6


def test_limits_that_cannot_be_kept_are_named_with_what_would_do():
    # Both run in pool 0 and may not be paused, and the one unit that pool has is enough for one of them.
    facts = {"pools": [0, 0], "current": [1, 1], "may_pause": False}
    with pytest.raises(Infeasible, match="the capacity") as caught:
        best_moves(Coupled.from_tables([[0.0, 1.0]] * 2, [1, 5], **facts))
    assert (caught.value.needed, caught.value.available) == (2.0, 1.0)
    with pytest.raises(Infeasible, match="at their smallest do not fit"):
        best_moves(Coupled.from_tables([[0.0, 1.0]] * 2, [1], current=[1, 1], may_pause=False))


def test_changes_that_must_be_made_but_may_not_are_named():
    with pytest.raises(Infeasible, match="most_changes") as caught:
        best_moves(Coupled.from_tables([[0.0, 1.0, NO]] * 3, [9], current=[2, 2, 1], most_changes=1))
    assert (caught.value.needed, caught.value.available) == (2.0, 1.0)


def test_a_job_without_a_choice_is_named():
    for capacity in ([5], [5, 5]):
        with pytest.raises(Infeasible, match="job 1 has no choice"):
            best_moves(Coupled.from_tables([[0.0, 1.0], [NO, NO]], capacity))


def test_no_jobs_gain_nothing():
    for capacity in ([4], [4, 4]):
        found = best_moves(Coupled.from_tables(np.zeros((0, 3)), capacity, most_changes=1))
        assert (found.total, found.changes, found.column_J.tolist()) == (0.0, 0, [])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Coupled.from_tables([[0.0, math.nan]], [1]), r"gain_JC\[0, 1\] = nan"),
        (lambda: Coupled.from_tables([[0.0, 1.0]], [-1]), "capacity_P = "),
        (lambda: Coupled.from_tables([[0.0, 1.0]], [math.nan]), "capacity_P = "),
        (lambda: Coupled.from_tables([[0.0, 1.0]], []), "pools = 0"),
        (lambda: Coupled.from_tables([[0.0, 1.0]], [1], pools=[0, 1]), "pools = "),
        (lambda: Coupled.from_tables([[0.0, 1.0]], [1], current=[2]), "current = "),
        (lambda: Coupled.from_tables([[0.0, 1.0]], [1], current=[0, 1]), "of shape"),
        (lambda: Coupled.from_tables([[0.0, 1.0]], [1], change_cost=-1.0), "change_cost = -1.0"),
        (lambda: Coupled.from_tables([[0.0, 1.0]], [1], most_changes=-1), "most_changes = "),
        (lambda: best_moves(Coupled.from_tables([[0.0, 1.0]], [1]), tolerance=2.0), "tolerance"),
        (lambda: best_moves(Coupled.from_tables([[0.0, 1.0]], [1]), time_limit_s=-1.0), "time_limit_s"),
        (lambda: best_moves(Coupled.from_tables([[0.0, 1.0]], [1, 1]), start=[3]), "start = "),
    ],
)
def test_nonsense_is_refused(call, match):
    with pytest.raises(InvalidValue, match=match):
        call()


def test_a_choice_of_several_pools_counts_as_of_that_of_which_it_uses_most_and_of_equals_the_first():
    row_KJC, units_KJC = [[[0, 0, 0]], [[1, 1, 1]]], [[[2, 1, 1]], [[1, 2, 1]]]
    assert Coupled.from_rows([[0.0, 1.0, 2.0]], [9, 9], row_KJC, units_KJC).pool_JC.tolist() == [[0, 1, 0]]
