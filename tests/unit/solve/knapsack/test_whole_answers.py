"""Whole answers, not their totals alone: who gets what among equals, what it costs, and how far the search went."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sublet.errors import Infeasible
from sublet.solve.knapsack import core
from sublet.solve.knapsack.core import _worth_trying, core_split
from sublet.solve.knapsack.greedy import greedy_split
from sublet.solve.knapsack.price import clearing, price_split
from sublet.solve.knapsack.problem import ROUNDING, Problem
from sublet.solve.knapsack.rows import Rows, rows_split

# J jobs, C choices, W units more than the settled split


def whole_tables(count, *, seed, jobs=5, choices=5, unit=1):
    """Whole gains, full of ties, some of them not allowed."""
    rng = np.random.default_rng(seed)
    while count:
        shape = (int(rng.integers(1, jobs + 1)), int(rng.integers(1, choices + 1)))
        gain = rng.integers(-1, 7, shape).astype(float)
        gain[rng.random(shape) < 0.15] = -np.inf
        sizes = unit * (np.arange(shape[1]) if rng.random() < 0.5 else rng.integers(0, 5, shape))
        try:
            yield Problem.from_tables(gain, int(rng.integers(0, unit * 3 * shape[0])), sizes=sizes)
        except Infeasible:
            continue
        count -= 1


def concave(count, *, seed):
    """Tables of falling steps, some of which end early or begin late, by steps of one size or of another."""
    rng = np.random.default_rng(seed)
    while count:
        jobs, choices, step = int(rng.integers(1, 6)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
        steps = -np.sort(-rng.integers(-1, 5, (jobs, choices - 1)), axis=1)
        gain = np.cumsum(np.hstack((rng.integers(-3, 3, (jobs, 1)), steps)), axis=1).astype(float)
        for job in range(jobs):
            gain[job, : rng.integers(0, choices) if rng.random() < 0.3 else 0] = -np.inf
            gain[job, choices - (rng.integers(0, choices) if rng.random() < 0.3 else 0) :] = -np.inf
        least = int(rng.integers(0, 3))
        try:
            problem = Problem.from_tables(
                gain, int(rng.integers(0, 4 * jobs * step)), sizes=least + step * np.arange(choices)
            )
        except Infeasible:
            continue
        yield problem, step
        count -= 1


def by_hand(problem, step):
    """Unit after unit to the first of those that gain most by it; the price is what the next one would gain."""
    first_J = (problem.gain_JC > -np.inf).argmax(axis=1)
    column_J, left = first_J.copy(), problem.capacity - int(problem.least_J.sum())

    def gains():
        for job, column in enumerate(column_J):
            if column + 1 < problem.gain_JC.shape[1] and problem.gain_JC[job, column + 1] > -np.inf:
                yield problem.gain_JC[job, column + 1] - problem.gain_JC[job, column], -job

    while (best := max(gains(), default=(0.0, 0)))[0] > 0.0:
        if left < step:
            return column_J, best[0] / step
        column_J[-best[1]] += 1
        left -= step
    return column_J, 0.0


def test_greed_hands_out_unit_after_unit_and_of_equals_the_first_is_served():
    short = 0
    for problem, step in concave(400, seed=1):
        found, (column_J, price) = greedy_split(problem), by_hand(problem, step)
        assert found.column_J.tolist() == column_J.tolist()
        assert found.price == pytest.approx(price)
        assert (found.gap, found.method) == (0.0, "greedy")
        short += price > 0.0
    assert short > 50


def test_of_equally_good_splits_the_dynamic_program_takes_the_first_choices_of_the_last_job():
    for problem in whole_tables(150, seed=2, jobs=4):
        jobs, choices = problem.gain_JC.shape
        ways = [
            column
            for column in itertools.product(range(choices), repeat=jobs)
            if problem.size_JC[np.arange(jobs), column].sum() <= problem.capacity
        ]
        totals = [problem.gain_JC[np.arange(jobs), column].sum() for column in ways]
        best = min(
            (column for column, total in zip(ways, totals, strict=True) if total == max(totals)),
            key=lambda column: column[::-1],
        )
        found = rows_split(problem)
        assert tuple(found.column_J.tolist()) == best
        assert (found.total, found.bound, found.price) == (max(totals), max(totals), clearing(problem).price)


def test_rows_know_every_smaller_capacity_too():
    for problem in whole_tables(60, seed=3, jobs=4):
        rows = Rows.of(problem.capacity)
        for gain_C, size_C in zip(problem.gain_JC, problem.size_JC, strict=True):
            rows = rows.with_job(gain_C, size_C)
        needed = int(problem.least_J.sum())
        for capacity in range(problem.capacity + 1):
            if capacity < needed:
                with pytest.raises(Infeasible) as caught:
                    rows.best(capacity)
                assert (caught.value.needed, caught.value.available) == (needed, capacity)
                assert rows.total(capacity) == -np.inf
                continue
            alone = rows_split(Problem.from_tables(problem.gain_JC, capacity, sizes=problem.size_JC))
            assert rows.total(capacity) == rows.best(capacity).total == alone.total
            assert rows.best(capacity).column_J.tolist() == alone.column_J.tolist()


# ---------------------------------------------------------------------- the price


def test_of_those_in_doubt_as_many_take_the_larger_as_fit():
    """What is left over is less than the largest step that somebody could take at the price for nothing."""
    doubtful = 0
    for problem in whole_tables(400, seed=4, unit=2):
        found, job_J = clearing(problem), np.arange(len(problem))
        worth_JC = problem.gain_JC - found.price * problem.size_JC
        own_J = worth_JC[job_J, found.column_J]
        assert own_J == pytest.approx(worth_JC.max(axis=1))
        equal_JC = np.isclose(worth_JC, own_J[:, None], rtol=0.0, atol=1e-9)
        more_JC = np.where(equal_JC, problem.size_JC - problem.size_JC[job_J, found.column_J][:, None], 0)
        if found.price > 0 and more_JC.max(initial=0) > 0:
            assert found.slack < more_JC.max()
            doubtful += 1
        assert found.price >= 0.0
        exact = price_split(problem)
        assert exact.gap == (0.0 if found.price * found.slack == 0 else pytest.approx(found.price * found.slack))
    assert doubtful > 30


# ---------------------------------------------------------------------- the search from there


@pytest.fixture
def looked_at(monkeypatch):
    """The jobs that the search took in, with what it knew before."""
    held = []
    plain = core._with_job

    def told(low, loss_W, ways):
        held.append((low, loss_W.copy(), list(ways)))
        return plain(low, loss_W, ways)

    monkeypatch.setattr(core, "_with_job", told)
    return held


def least_losses(groups):
    """By units more: the least that any changes of these jobs lose together. By trying all of them."""
    found = {}
    for ways in itertools.product(*([(0, 0.0), *group] for group in groups)):
        units, loss = sum(more for more, _ in ways), sum(loss for _, loss in ways)
        found[units] = min(loss, found.get(units, np.inf))
    return found


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
@pytest.mark.parametrize("unit", [1, 3])
def test_job_after_job_is_looked_at_until_the_next_is_too_dear(looked_at, tolerance, unit):
    """The twin tries all changes of the jobs so far; what could be better by then decides whether one more is asked."""
    rng, steps, ended = np.random.default_rng(5), 0, 0
    for _ in range(250):
        shape = (int(rng.integers(3, 9)), int(rng.integers(2, 4)))
        gain, sizes = rng.uniform(0.0, 9.0, shape), unit * rng.integers(0, 7, shape)
        gain[:, 0], sizes[:, 0] = 0.0, 0
        problem = Problem.from_tables(gain, int(rng.integers(4, 20)), sizes=sizes)
        settled = clearing(problem)
        rounding = ROUNDING * (abs(settled.bound) + settled.price * problem.capacity)
        enough = max(tolerance * abs(settled.bound), rounding)
        looked_at.clear()
        core_split(problem, tolerance=tolerance)
        if settled.price * settled.slack <= enough:
            assert not looked_at
            continue
        changes, slack, lost, _ = _worth_trying(problem, settled)
        rows = list(zip(*(each.tolist() for each in (
            changes.job_O, changes.more_O, changes.loss_O, changes.column_O, changes.least_O
        )), strict=True))  # fmt: skip
        groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row[0])]
        before = 0
        for group in groups:
            if lost <= enough or min(row[4] for row in group) >= lost - rounding:
                ended += 1
                break
            low, loss_W, ways = looked_at[before]
            assert ways == [(more, loss, column) for _, more, loss, column, least in group if least < lost]
            known = least_losses([[row[1:3] for row in each] for each in groups[:before]])
            assert max(loss_W[0], loss_W[-1]) < lost or before == 0
            for units, loss in known.items():
                if loss < lost - 1e-12:
                    assert loss_W[units - low] == pytest.approx(loss)
            before += 1
            now = least_losses([[row[1:3] for row in each] for each in groups[:before]])
            best = min(loss + settled.price * (slack - units) for units, loss in now.items() if units <= slack)
            lost = min(lost, best)
        assert len(looked_at) == before
        steps += before
    assert steps > 40
    assert ended > 5


def test_of_equally_good_single_changes_the_first_is_taken():
    """Four are left over and two want them, for as much: the first gets them."""
    problem = Problem.from_tables([[0.0, 9.0, 9.5], [0.0, 3.0, 3.0], [0.0, 3.0, 3.0]], 8, sizes=[0, 4, 7])
    assert core_split(problem).column_J.tolist() == [1, 1, 0]
