"""From a clearing price to the best split: the price is the lowest bound, and only what may still pay is looked at."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sublet.errors import Infeasible
from sublet.solve.knapsack import price
from sublet.solve.knapsack.core import _thin_changes, _worth_trying, core_split
from sublet.solve.knapsack.price import clearing
from sublet.solve.knapsack.problem import Problem
from sublet.solve.knapsack.split import best_split

# J jobs, C choices, O changes


def drawn(count, *, jobs=6, choices=6, unit=1, seed=0):
    """Tables of which some have holes, some repeat sizes, and some have many jobs alike."""
    rng = np.random.default_rng(seed)
    while count:
        shape = (int(rng.integers(2, jobs + 1)), int(rng.integers(2, choices + 1)))
        gain = rng.uniform(0.0, 9.0, shape) if rng.random() < 0.5 else rng.integers(0, 7, shape).astype(float)
        if rng.random() < 0.5:
            gain = np.sort(gain, axis=1)
        gain[:, 1:][rng.random((shape[0], shape[1] - 1)) < 0.2] = -np.inf
        sizes = unit * (np.arange(shape[1]) if rng.random() < 0.5 else rng.integers(0, 6, shape))
        try:
            yield Problem.from_tables(gain, int(rng.integers(1, unit * 3 * shape[0])), sizes=sizes)
        except Infeasible:
            continue
        count -= 1


def bound_at(problem, price):
    worth_JC = problem.gain_JC - price * problem.size_JC
    return price * problem.capacity + worth_JC.max(axis=1).sum()


def test_no_price_has_a_lower_bound_than_the_clearing_price():
    """The bound is convex and bends only where two choices of a job are equally good."""
    for problem in drawn(150):
        found = clearing(problem)
        prices = {0.0}
        for gain_C, size_C in zip(problem.gain_JC, problem.size_JC, strict=True):
            for one, other in itertools.combinations(np.flatnonzero(gain_C > -np.inf), 2):
                if size_C[one] != size_C[other]:
                    prices.add(max(0.0, (gain_C[one] - gain_C[other]) / (size_C[one] - size_C[other])))
        assert found.bound == pytest.approx(bound_at(problem, found.price))
        assert found.bound == pytest.approx(min(bound_at(problem, price) for price in prices))
        job_J = np.arange(len(problem))
        assert found.slack == problem.capacity - problem.size_JC[job_J, found.column_J].sum() >= 0
        worth_JC = problem.gain_JC - found.price * problem.size_JC  # nobody would rather have another
        assert worth_JC[job_J, found.column_J] == pytest.approx(worth_JC.max(axis=1))


@pytest.mark.parametrize("times", [0.0, 0.3, 0.99, 1.0, 1.01, 3.0])
def test_wherever_the_clearing_price_is_looked_for_first_it_is_found(times, monkeypatch):
    for problem in drawn(60):
        found = clearing(problem)
        monkeypatch.setattr(price, "_guess", lambda _, guess=times * found.price: guess)
        other = clearing(problem)
        monkeypatch.undo()
        assert other.bound == pytest.approx(found.bound)
        assert other.price == pytest.approx(found.price)


def test_where_no_step_gains_more_than_the_one_before_the_clearing_price_is_guessed():
    """That of the first step that there is no room for, of all steps in the order of what a unit gains."""
    problem = Problem.from_tables([[0.0, 4.0, 6.0, 7.0], [0.0, 5.0, 8.0, 8.5]], 3)
    assert price._guess(problem) == clearing(problem).price == 2.0


def unfilled(count, **facts):
    """Problems in which the price leaves something over, and what may still pay there."""
    for problem in drawn(count, **facts):
        settled = clearing(problem)
        if settled.price * settled.slack > 1e-9:
            yield problem, settled, _worth_trying(problem, settled)


@pytest.mark.parametrize("unit", [1, 4])
def test_only_changes_that_may_pay_are_tried_the_cheapest_jobs_first(unit):
    several = 0
    for problem, settled, (changes, slack, lost, _) in unfilled(120, unit=unit, jobs=16, choices=8):
        job_J = np.arange(len(problem))
        worth_JC = problem.gain_JC - settled.price * problem.size_JC
        loss_JC = worth_JC[job_J, settled.column_J][:, None] - worth_JC
        more_JC = problem.size_JC - problem.size_JC[job_J, settled.column_J][:, None]
        at = changes.job_O, changes.column_O
        assert changes.more_O.tolist() == more_JC[at].tolist()
        assert changes.loss_O == pytest.approx(loss_JC[at], abs=1e-9)
        assert (changes.more_O != 0).all()
        assert (changes.least_O >= changes.loss_O - 1e-12).all()
        assert (changes.least_O < lost).all()
        assert slack <= settled.slack
        least_of = {}
        for job, least in zip(changes.job_O.tolist(), changes.least_O.tolist(), strict=True):
            least_of.setdefault(job, []).append(least)
        assert [min(each) for each in least_of.values()] == sorted(min(each) for each in least_of.values())
        assert all(each == sorted(each) for each in least_of.values())
        several += len(least_of) > 1
    assert several >= 5


def test_a_split_with_a_change_loses_no_less_than_is_thought_of_it():
    dearer = 0
    for problem, settled, (changes, slack, _, _) in unfilled(150, jobs=4, choices=5, unit=3, seed=2):
        job_J, best_JC = np.arange(len(problem)), np.full(problem.gain_JC.shape, -np.inf)
        for column in map(list, itertools.product(range(problem.gain_JC.shape[1]), repeat=len(problem))):
            if problem.size_JC[job_J, column].sum() <= problem.capacity:
                best_JC[job_J, column] = np.maximum(best_JC[job_J, column], problem.gain_JC[job_J, column].sum())
        bound = settled.bound - settled.price * (settled.slack - slack)
        assert (changes.least_O <= bound - best_JC[changes.job_O, changes.column_O] + 1e-9).all()
        dearer += (changes.least_O > changes.loss_O + 1e-9).any()
    assert dearer


def test_what_is_lost_before_the_search_is_what_the_best_single_change_loses():
    helped = 0
    for problem, settled, (_, slack, lost, first) in unfilled(300, unit=2):
        job_J, column_J = np.arange(len(problem)), settled.column_J
        best, which = problem.gain_JC[job_J, column_J].sum(), None
        for job, column in np.ndindex(*problem.gain_JC.shape):
            other_J = column_J.copy()
            other_J[job] = column
            if problem.size_JC[job_J, other_J].sum() <= problem.capacity:
                total = problem.gain_JC[job_J, other_J].sum()
                best, which = (total, (job, column)) if total > best + 1e-9 else (best, which)
        bound = settled.bound - settled.price * (settled.slack - slack)  # what cannot be filled is lost anyway
        assert bound - lost == pytest.approx(best)
        helped += which is not None
        assert which is None or first is not None
        if first is not None:
            other_J = column_J.copy()
            other_J[first[0]] = first[1]
            assert problem.gain_JC[job_J, other_J].sum() == pytest.approx(best)
    assert helped > 20


def test_of_changes_by_as_much_no_more_are_kept_than_a_best_split_can_have():
    """Many jobs alike, of sizes that do not add up."""
    rng = np.random.default_rng(3)
    thinned = 0
    for capacity in (101, 203, 305):
        gain = np.full((60, 12), -np.inf)
        gain[:, [0, 7, 11]] = np.array([0.0, 7.0, 11.2]) + rng.uniform(0.0, 0.01, (60, 3)) * [0, 1, 1]
        problem = Problem.from_tables(gain, capacity)
        settled = clearing(problem)
        changes, slack, _, _ = _worth_trying(problem, settled)
        for more in set(changes.more_O.tolist()):
            kept = np.flatnonzero(changes.more_O == more)
            most = max(changes.more_O.max(), slack) - min(changes.more_O.min(), 0)
            assert len(kept) <= most
            assert len(set(changes.job_O[kept].tolist())) == len(kept)
        again = _thin_changes(changes, slack)
        assert len(again) == len(changes)
        thinned += len(changes) < 120
        assert core_split(problem).total == pytest.approx(best_split(gain, capacity, method="rows").total)
    assert thinned


@pytest.mark.parametrize("tolerance", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("unit", [1, 8])
def test_a_tolerance_is_kept_also_where_what_is_left_can_never_be_filled(tolerance, unit):
    """By multiples of 8 seven units are left over whatever is done: that is no reason to search, and none to doubt."""
    early = 0
    for problem in drawn(150, unit=unit, seed=5):
        exact, loose = core_split(problem), core_split(problem, tolerance=tolerance)
        assert exact.gap == 0.0
        assert exact.total - 1e-9 <= loose.bound
        assert loose.gap <= tolerance * abs(clearing(problem).bound) + 1e-9
        assert loose.total >= exact.total - loose.gap - 1e-9
        assert loose.bound <= clearing(problem).bound + 1e-9
        early += loose.total < exact.total - 1e-9
    assert early or tolerance < 0.1


def test_a_job_that_may_have_anything_takes_the_first_of_what_is_worth_most():
    assert core_split(Problem.from_tables([[0.0, 3.0, 3.0]], 9)).column_J.tolist() == [1]
    assert core_split(Problem.from_tables([[0.0, 3.0, 3.0]], 0)).column_J.tolist() == [0]
    assert math.isclose(core_split(Problem.from_tables([[0.0, 1.0, 4.0], [0.0, 2.5, 3.0]], 3)).total, 6.5)
