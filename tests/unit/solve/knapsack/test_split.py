from __future__ import annotations

import doctest
import importlib
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.knapsack.core import core_split
from sublet.solve.knapsack.greedy import is_concave
from sublet.solve.knapsack.rows import Rows
from sublet.solve.knapsack.split import Problem, best_split

NO = -math.inf
METHODS = ("core", "rows", None)
MODULES = ("split", "problem", "price", "core", "greedy", "rows")


def amdahl(width, parallel):
    return np.where(width > 0, 1 / ((1 - parallel) + parallel / np.maximum(width, 1)), 0.0)


def brute_force(gain, capacity, sizes=None):
    """The best total over all ways of choosing."""
    gain = np.asarray(gain)
    size = np.broadcast_to(np.arange(gain.shape[1]) if sizes is None else sizes, gain.shape)
    best = NO
    for column in itertools.product(range(gain.shape[1]), repeat=len(gain)):
        picked = range(len(gain)), list(column)
        if size[picked].sum() <= capacity:
            best = max(best, gain[picked].sum())
    return best


def random_table(rng, jobs, choices):
    """One of six kinds: noise, stairs, many alike, penalties beyond a node, negative gains, small whole numbers."""
    kind = rng.integers(6)
    if kind == 0:
        gain = rng.random((jobs, choices))
    elif kind == 1:
        gain = np.sort(rng.random((jobs, choices)), axis=1)
    elif kind == 2:
        gain = np.sort(rng.integers(0, 20, (3, choices)), axis=1).astype(float)[rng.integers(0, 3, jobs)]
    elif kind == 3:
        width = np.arange(choices)
        gain = width ** rng.uniform(0.5, 0.95, (jobs, 1)) * np.where(width > 4, 0.8, 1.0)
    elif kind == 4:
        gain = rng.normal(size=(jobs, choices))
    else:
        gain = rng.integers(0, 6, (jobs, choices)).astype(float)
    gain[rng.random(gain.shape) < rng.choice([0.0, 0.1, 0.5])] = NO
    gain[np.arange(jobs), rng.integers(0, choices, jobs)] = 1.0
    return gain


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_the_docstrings_hold(module):
    failed, tried = doctest.testmod(importlib.import_module(f"sublet.solve.knapsack.{module}"))
    assert tried > 0
    assert failed == 0


def test_a_thousand_random_tables_are_split_as_by_the_dynamic_program():
    rng, solved = np.random.default_rng(0), 0
    while solved < 1_000:
        jobs, choices = rng.integers(1, 30), rng.integers(1, 12)
        gain = random_table(rng, jobs, choices)
        sizes = (None, np.sort(rng.integers(0, 20, choices)), rng.integers(0, 15, gain.shape))[rng.integers(3)]
        capacity = int(rng.integers(0, jobs * choices + 2) * rng.choice([0.3, 0.6, 1.0]))
        try:
            problem = Problem.from_tables(gain, capacity, sizes=sizes)
        except Infeasible:
            continue
        solved += 1
        exact = best_split(gain, capacity, sizes=sizes, method="rows").total
        found = core_split(problem)
        assert found.total == pytest.approx(exact, abs=1e-9)
        assert found.width_J.sum() <= capacity
        assert found.gap == 0.0


@pytest.mark.parametrize("beyond", [1.0, 0.8])
def test_many_jobs_are_split_as_by_the_dynamic_program(beyond):
    width, exponent = np.arange(17.0), np.random.default_rng(1).uniform(0.5, 0.95, (300, 1))
    gain = width**exponent * np.where(width > 4, beyond, 1.0)
    found = best_split(gain, 700)
    assert found.method == ("greedy" if beyond == 1.0 else "core")
    assert found.total == pytest.approx(best_split(gain, 700, method="rows").total)
    assert found.gap == 0.0


def test_the_two_job_example_ends_where_marginal_speeds_are_equal():
    width = np.arange(33)
    gain = np.stack((amdahl(width, 0.8), np.sqrt(width)))
    found = best_split(gain, 15)
    assert found.width_J.sum() == 15
    assert found.total == pytest.approx(max(gain[0, k] + gain[1, 15 - k] for k in range(16)))
    # One more unit would gain the price.
    assert best_split(gain, 16).total - found.total == pytest.approx(found.price)


@pytest.mark.parametrize("method", METHODS)
def test_a_job_that_must_run_takes_its_smallest_size_before_others_grow(method):
    gain = [[NO, NO, 1.0, 1.1], [0.0, 5.0, 9.0, 12.0]]
    found = best_split(gain, 3, method=method)
    assert found.width_J.tolist() == [2, 1]
    assert found.total == 6.0


@pytest.mark.parametrize("method", METHODS)
def test_no_capacity_leaves_everyone_waiting(method):
    found = best_split([[0.0, 1.0], [0.25, 1.0]], 0, method=method)
    assert found.width_J.tolist() == [0, 0]
    assert found.total == 0.25


@pytest.mark.parametrize("method", METHODS)
def test_no_jobs_gain_nothing(method):
    found = best_split(np.zeros((0, 4)), 7, method=method)
    assert found.width_J.tolist() == []
    assert (found.total, found.gap, found.price) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("capacity", range(6))
def test_one_job_takes_its_best_size_that_fits(method, capacity):
    table = [0.0, 3.0, 1.0, NO, 4.0]
    found = best_split([table], capacity, method=method)
    assert found.total == max(table[: capacity + 1])


@pytest.mark.parametrize("method", METHODS)
def test_more_is_not_taken_where_it_gains_less(method):
    found = best_split([[0.0, 2.0, 1.0], [-1.0, -2.0, -3.0]], 9, method=method)
    assert found.width_J.tolist() == [1, 0]
    assert found.total == 1.0
    assert found.price == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_sizes_may_have_holes_repeat_or_differ_by_job(method):
    gain = [[0.0, 5.0, 6.0, 7.0], [1.0, 4.0, 9.5, 2.0], [0.5, 3.0, 3.0, 3.5]]
    for sizes in ([0, 1, 4, 4], [[0, 3, 2, 5], [0, 1, 4, 1], [1, 2, 2, 3]]):
        for capacity in range(2, 12):
            found = best_split(gain, capacity, sizes=sizes, method=method)
            assert found.total == pytest.approx(brute_force(gain, capacity, sizes))
            size_JC = np.broadcast_to(sizes, (3, 4))
            assert found.width_J.tolist() == size_JC[range(3), found.column_J].tolist()


def test_whole_nodes_leave_what_is_less_than_a_node():
    width = np.arange(33)
    gain = np.where(width % 8 == 0, width**0.9, NO) * np.ones((50, 1))
    found = best_split(gain, 203)
    assert found.width_J.sum() == 200
    assert found.total == pytest.approx(best_split(gain, 203, method="rows").total)


def test_choices_between_two_sizes_that_do_not_add_up_are_searched_through():
    # 7s and 11s only, all jobs alike: the price leaves ten units, and no change by one job fills them.
    gain = np.full((120, 12), NO)
    gain[:, [0, 7, 11]] = [0.0, 7.0, 11.2]
    found = best_split(gain, 505)
    assert found.total == pytest.approx(best_split(gain, 505, method="rows").total)
    assert found.gap == 0.0


def test_a_tolerance_stops_early_and_says_how_far_it_may_be():
    rng = np.random.default_rng(5)
    gain = np.sort(rng.random((40, 12)), axis=1)
    for capacity in range(20, 200, 9):
        loose, exact = best_split(gain, capacity, tolerance=0.05), best_split(gain, capacity)
        assert exact.total <= loose.bound + 1e-9
        assert loose.gap <= 0.05 * loose.bound


def test_the_price_alone_leaves_less_than_one_step_and_bounds_the_rest():
    rng = np.random.default_rng(6)
    gain = np.sort(rng.random((40, 12)), axis=1)
    for capacity in range(20, 200, 9):
        rough, exact = best_split(gain, capacity, method="price"), best_split(gain, capacity)
        assert rough.total <= exact.total + 1e-9
        assert exact.total <= rough.bound + 1e-9
        assert capacity - rough.width_J.sum() < 12


def test_greed_is_refused_where_it_is_not_exact():
    with pytest.raises(InvalidValue, match="concave for the greedy method"):
        best_split([[0.0, 0.0, 1.0]], 2, method="greedy")


@pytest.mark.parametrize(
    ("table", "sizes", "concave"),
    [
        ([0.0, 2.0, 3.0, 3.0, 2.0], None, True),
        ([NO, 2.0, 3.0, NO, NO], None, True),
        ([0.0, 2.0, NO, 3.0, NO], None, False),
        ([0.0, NO, 2.0, 3.0, NO], None, False),
        ([0.0, 1.0, 3.0, 4.0, 5.0], None, False),
        ([0.0, 2.0, 3.0, 3.0, 2.0], [0, 8, 16, 24, 32], True),
        ([0.0, 2.0, 3.0, 3.0, 2.0], [0, 1, 2, 4, 8], False),
        ([0.0, 2.0, 3.0, 3.0, 2.0], [4, 3, 2, 1, 0], False),
    ],
)
def test_concave_means_adjacent_sizes_and_steps_that_never_gain_more(table, sizes, concave):
    problem = Problem.from_tables([table], 100, sizes=sizes)
    assert is_concave(problem) == concave


def test_greed_counts_in_steps_where_sizes_are_multiples():
    gain = [[0.0, 5.0, 8.0], [0.0, 4.0, 6.0], [0.0, 4.0, 5.0]]
    found = best_split(gain, 37, sizes=[0, 8, 16])
    assert found.method == "greedy"
    assert found.width_J.tolist() == [16, 8, 8]
    assert found.price == 2.0 / 8


def test_equal_units_are_handed_out_up_to_the_capacity():
    gain = np.minimum(np.arange(9), 8) * np.ones((5, 1))
    found = best_split(gain, 21, method="greedy")
    assert found.width_J.sum() == 21
    assert found.total == 21.0


def test_rows_grow_by_one_job_and_the_old_ones_stay():
    rng = np.random.default_rng(7)
    gain, rows = random_table(rng, 12, 6), Rows.of(30)
    gain[:, 0] = 0.0
    for jobs in range(1, 13):
        before, total = rows, rows.total()
        rows = before.with_job(gain[jobs - 1])
        assert rows.total() == pytest.approx(best_split(gain[:jobs], 30).total)
        assert rows.total(11) == pytest.approx(best_split(gain[:jobs], 11).total)
        assert before.total() == total
    found = rows.best(17)
    assert found.total == rows.total(17)
    assert found.width_J.sum() <= 17
    assert found.gap == 0.0


def test_admission_first_come_first_served_refuses_what_no_longer_fits_and_goes_on():
    rows, admitted = Rows.of(8), []
    for job, least in enumerate([3, 4, 2, 1, 1]):
        tried = rows.with_job(np.where(np.arange(9) >= least, np.arange(9) ** 0.5, NO))
        if tried.total() > -np.inf:
            rows, admitted = tried, [*admitted, job]
    assert admitted == [0, 1, 3]
    assert rows.best().width_J.sum() == 8
    with pytest.raises(Infeasible, match="is needed") as caught:
        rows.best(7)
    assert (caught.value.needed, caught.value.available) == (8, 7)
    with pytest.raises(Infeasible) as caught:
        rows.with_job([NO, NO, 1.0]).best()
    assert (caught.value.needed, caught.value.available) == (10, 8)
    with pytest.raises(Infeasible) as caught:
        rows.with_job([NO]).best()
    assert caught.value.needed == math.inf


def test_rows_take_tables_of_different_width_and_sizes():
    rows = Rows.of(10).with_job([0.0, 5.0], [0, 4]).with_job([0.0, 1.0, 2.0]).with_job([NO, 3.0, 9.0], [0, 2, 7])
    assert rows.best().width_J.tolist() == [0, 2, 7]
    assert rows.best().total == rows.total() == 11.0
    assert Rows.of(3).best().total == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_a_job_without_a_choice_is_named(method):
    with pytest.raises(Infeasible, match="job 1 has no choice"):
        best_split([[0.0, 1.0], [NO, NO]], 5, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_jobs_that_do_not_fit_at_their_smallest_are_refused_with_what_would_do(method):
    with pytest.raises(Infeasible, match="let some jobs wait") as caught:
        best_split([[NO, NO, 1.0], [NO, NO, NO, 1.0][1:]], 3, method=method)
    assert (caught.value.needed, caught.value.available) == (4, 3)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: best_split([1.0, 2.0], 1), "a table of jobs by choices"),
        (lambda: best_split([[]], 1), "a table of jobs by choices"),
        (lambda: best_split([[0.0, math.nan]], 1), r"gain_JC\[0, 1\] = nan"),
        (lambda: best_split([[0.0, 1.0], [math.inf, 1.0]], 1), r"gain_JC\[1, 0\] = inf"),
        (lambda: best_split([[0.0, 1.0]], -1), "capacity = -1"),
        (lambda: best_split([[0.0, 1.0]], 1.5), "capacity = 1.5"),
        (lambda: best_split([[0.0, 1.0]], 1, sizes=[0, -1]), "whole numbers"),
        (lambda: best_split([[0.0, 1.0]], 1, sizes=[0, 0.5]), "whole numbers"),
        (lambda: best_split([[0.0, 1.0]], 1, sizes=[0, 1, 2]), "one per column, 2"),
        (lambda: best_split([[0.0, 1.0]], 1, tolerance=-0.1), "tolerance = -0.1"),
        (lambda: best_split([[0.0, 1.0]], 1, method="guess"), "method = 'guess'"),
        (lambda: Rows.of(-1), "capacity = -1"),
        (lambda: Rows.of(3).total(4), "capacity = 4"),
        (lambda: Rows.of(3).with_job([0.0, math.nan]), "one gain per choice"),
        (lambda: Rows.of(3).with_job([0.0, math.inf]), "one gain per choice"),
        (lambda: Rows.of(3).with_job([[0.0, 1.0]]), "one gain per choice"),
        (lambda: Rows.of(3).total(-1), "capacity = -1"),
        (lambda: Rows.of(3).with_job([0.0, 1.0], [0, -2]), "whole numbers"),
        (lambda: Rows.of(3).with_job([0.0, 1.0], [0, math.nan]), "whole numbers"),
        (lambda: Rows.of(3).with_job([0.0, 1.0], [0, 1, 2]), "one per column, 2"),
    ],
)
def test_nonsense_is_refused(call, match):
    with pytest.raises(InvalidValue, match=match):
        call()


def test_nothing_slow_is_imported_before_it_is_needed():
    code = "import sys, sublet.solve.mip.moves; assert not {'highspy', 'numba', 'scipy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sizes_that_are_even_for_the_first_job_alone_are_not_taken_for_even():
    gain = np.array([[0.0, 3.0, 5.0, 6.0], [0.0, 4.0, 6.0, 7.0]])
    sizes = np.array([[0, 1, 2, 3], [0, 1, 2, 5]])
    for capacity in range(9):
        found = best_split(gain, capacity, sizes=sizes)
        assert found.total == pytest.approx(brute_force(gain, capacity, sizes))
        assert found.width_J.sum() <= capacity
