"""The knapsack solvers against slow and literal twins: all ways of choosing, and each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sublet.errors import Infeasible
from sublet.solve.knapsack.greedy import is_concave
from sublet.solve.knapsack.rows import Rows
from sublet.solve.knapsack.split import Problem, best_split
from sublet.solve.mip.moves import NOT_RUNNING, Coupled, _solve_coupled, allows, best_moves
from tests.rigs.coupled import by_use

NO = -math.inf
round_numbers = st.integers(-3, 6).map(float)  # full of ties
gains = st.one_of(round_numbers, st.floats(-10.0, 10.0), st.just(NO))
A_FEW = st.integers(1, 4)


@st.composite
def tables(draw, jobs=A_FEW, most=5):
    """Gains by job and choice; each job has a choice."""
    rows, width = draw(jobs), draw(st.integers(1, most))
    gain = np.array(draw(st.lists(gains, min_size=rows * width, max_size=rows * width))).reshape(rows, width)
    for row in range(rows):
        gain[row, draw(st.integers(0, width - 1))] = draw(round_numbers)
    return gain


@st.composite
def problems(draw):
    gain = draw(tables())
    jobs, width = gain.shape
    shape = draw(st.sampled_from([None, (width,), (jobs, width)]))
    sizes = None
    if shape is not None:
        count = math.prod(shape)
        sizes = np.array(draw(st.lists(st.integers(0, 7), min_size=count, max_size=count))).reshape(shape)
    return gain, draw(st.integers(0, 20)), sizes


@st.composite
def concave_tables(draw):
    """Steps that fall along each row, from a smallest size on."""
    jobs, width = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    gain = np.full((jobs, width), NO)
    for row in range(jobs):
        first = draw(st.integers(0, width - 1))
        steps = sorted(draw(st.lists(st.integers(-4, 9), max_size=width - 1 - first)), reverse=True)
        gain[row, first : first + len(steps) + 1] = np.cumsum([draw(st.integers(-5, 5)), *steps])
    return gain


def best_of_all(gain, capacity, sizes):
    size = np.broadcast_to(np.arange(gain.shape[1]) if sizes is None else sizes, gain.shape)
    jobs, best = np.arange(len(gain)), NO
    for column in itertools.product(range(gain.shape[1]), repeat=len(gain)):
        if size[jobs, column].sum() <= capacity:
            best = max(best, gain[jobs, column].sum())
    return best


@given(st.one_of(problems(), concave_tables().map(lambda gain: (gain, 60, None))))
def test_where_all_fit_each_gets_the_first_of_what_it_gains_most_by_and_nothing_costs(problem):
    gain, capacity, sizes = problem
    size, wanted = (
        np.broadcast_to(np.arange(gain.shape[1]) if sizes is None else sizes, gain.shape),
        gain.argmax(axis=1),
    )
    assume(size[np.arange(len(gain)), wanted].sum() <= capacity)
    found = best_split(gain, capacity, sizes=sizes)
    assert found.column_J.tolist() == wanted.tolist()
    assert found.price == 0.0


@given(tables(), st.data())
def test_where_all_fit_into_several_pools_each_gets_that_too_unless_it_has_as_good(gain, data):
    gain = np.concatenate((np.zeros((len(gain), 1)), gain), axis=1)
    uses = np.zeros((2, *gain.shape), dtype=int)
    for place in np.ndindex(*gain.shape):
        uses[data.draw(st.integers(0, 1)), place[0], place[1]] = data.draw(st.integers(0, 3)) if place[1] else 0
    job, wanted, limits = np.arange(len(gain)), gain.argmax(axis=1), [data.draw(st.integers(0, 9)) for _ in range(2)]
    assume((uses[:, job, wanted].sum(axis=1) <= limits).all())
    start = np.array([data.draw(st.integers(0, gain.shape[1] - 1)) for _ in gain])
    keeps = gain[job, start].sum() >= gain[job, wanted].sum() and (uses[:, job, start].sum(axis=1) <= limits).all()
    found = best_moves(by_use(gain, limits, uses), start=start, tolerance=0.02, rough=True)
    assert found.column_J.tolist() == (start if keeps else wanted).tolist()
    assert found.price_R.tolist() == [0.0, 0.0]


@given(problems())
def test_every_exact_method_finds_the_best_of_all_ways_of_choosing(problem):
    gain, capacity, sizes = problem
    best = best_of_all(gain, capacity, sizes)
    for method in ("rows", "core", None):
        if best == NO:
            with pytest.raises(Infeasible):
                best_split(gain, capacity, sizes=sizes, method=method)
            continue
        found = best_split(gain, capacity, sizes=sizes, method=method)
        assert found.total == pytest.approx(best, abs=1e-9)
        assert found.gap == 0.0
        assert found.width_J.sum() <= capacity
        assert found.total == pytest.approx(gain[np.arange(len(gain)), found.column_J].sum())


@given(concave_tables(), st.integers(0, 40))
def test_greed_is_exact_on_concave_tables(gain, capacity):
    try:
        problem = Problem.from_tables(gain, capacity)
    except Infeasible:
        assume(False)
    assert is_concave(problem)
    greedy, exact = (best_split(gain, capacity, method=method) for method in ("greedy", "rows"))
    assert greedy.total == exact.total
    assert greedy.width_J.sum() <= capacity


@given(problems(), st.floats(0.0, 0.5))
def test_the_bound_holds_and_the_gap_is_within_the_tolerance(problem, tolerance):
    gain, capacity, sizes = problem
    best = best_of_all(gain, capacity, sizes)
    assume(best > NO)
    loose = best_split(gain, capacity, sizes=sizes, method="core", tolerance=tolerance)
    rough = best_split(gain, capacity, sizes=sizes, method="price")
    for found in (loose, rough):
        assert found.total <= best + 1e-9
        assert best <= found.bound + 1e-9
    assert loose.gap <= tolerance * max(abs(loose.bound), abs(rough.bound)) + 1e-9


@given(problems())
def test_at_the_price_no_job_would_rather_have_another_size_by_more_than_the_gap(problem):
    gain, capacity, sizes = problem
    assume(best_of_all(gain, capacity, sizes) > NO)
    found = best_split(gain, capacity, sizes=sizes, method="price")
    size = np.broadcast_to(np.arange(gain.shape[1]) if sizes is None else sizes, gain.shape)
    fits = Problem.from_tables(gain, capacity, sizes=sizes).gain_JC
    worth = fits - found.price * size
    jobs = np.arange(len(gain))
    assert (worth.max(axis=1) - worth[jobs, found.column_J]).sum() <= found.gap + 1e-9


@given(tables(jobs=st.integers(1, 6)), st.integers(0, 15))
def test_rows_appended_one_by_one_are_the_table_from_scratch(gain, capacity):
    rows = Rows.of(capacity)
    for jobs in range(1, len(gain) + 1):
        rows = rows.with_job(gain[jobs - 1])
        try:
            exact = best_split(gain[:jobs], capacity, method="rows").total
        except Infeasible:
            exact = NO
        assert (rows.total() > NO) == (exact > NO)
        assert rows.total() == exact


@given(tables(jobs=st.integers(1, 6)), st.integers(0, 15), st.integers(0, 15))
def test_more_capacity_never_gains_less(gain, capacity, more):
    try:
        before = best_split(gain, capacity)
    except Infeasible:
        assume(False)
    after = best_split(gain, capacity + more)
    assert after.total >= before.total - 1e-9


@st.composite
def couplings(draw):
    """A coupled problem, with what it was made from."""
    gain = draw(tables(jobs=st.integers(1, 4), most=4))
    jobs, width = gain.shape
    pools = draw(st.integers(1, 3))

    def several(values, count):
        return draw(st.lists(values, min_size=count, max_size=count))

    facts = {
        "pools": np.array(several(st.integers(0, pools - 1), jobs * width)).reshape(jobs, width),
        "current": np.array(several(st.integers(NOT_RUNNING, width - 1), jobs)),
        "change_cost": np.array(several(st.integers(0, 3).map(float), jobs)),
        "most_changes": draw(st.one_of(st.none(), st.integers(0, jobs))),
        "may_pause": draw(st.booleans()),
    }
    return gain, several(st.integers(0, 6), pools), facts


def best_of_all_moves(gain, capacity, facts):
    """The rules, word by word."""
    best = NO
    for column in itertools.product(range(gain.shape[1]), repeat=len(gain)):
        total, changes, used = 0.0, 0, np.zeros(len(capacity))
        for job, choice in enumerate(column):
            now = facts["current"][job]
            total += gain[job, choice]
            used[facts["pools"][job, choice]] += choice
            if now not in {NOT_RUNNING, choice}:
                changes += 1
                total -= facts["change_cost"][job]
            if not facts["may_pause"] and now > 0 and choice == 0:
                total = NO
        few = facts["most_changes"] is None or changes <= facts["most_changes"]
        if few and (used <= capacity).all():
            best = max(best, total)
    return best


@given(couplings())
def test_moves_are_the_best_of_all_that_keep_the_rules(problem):
    gain, capacity, facts = problem
    asked = Coupled.from_tables(gain, capacity, **facts)
    best = best_of_all_moves(gain, capacity, facts)
    if best == NO:
        with pytest.raises(Infeasible):
            best_moves(asked)
        return
    for found in (best_moves(asked), _solve_coupled(asked, None, tolerance=0.0, time_limit_s=math.inf)):
        assert found.total == pytest.approx(best, abs=1e-6)
        assert found.gap == pytest.approx(0.0, abs=1e-6)
        assert allows(asked, found.column_J)
