"""What solvers take and what they refuse, at the very border, and what they make of it: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.knapsack.greedy import is_concave
from sublet.solve.knapsack.problem import Problem
from sublet.solve.lookahead import Ahead
from sublet.solve.mip.moves import _answer, allows, best_moves
from sublet.solve.mip.problem import Coupled
from sublet.solve.phases import Phases

INF = math.inf

# ---------------------------------------------------------------------- one capacity


def test_the_least_that_each_may_have_has_to_fit_and_the_rest_is_struck_out():
    """Two must have 1 and 2 of 4: beyond 2 and 3 nothing can be had."""
    gains = [[-INF, 1.0, 2.0, 3.0, 4.0], [-INF, -INF, 1.0, 2.0, 3.0]]
    problem = Problem.from_tables(gains, 4)
    assert problem.least_J.tolist() == [1, 2]
    assert problem.gain_JC.tolist() == [[-INF, 1.0, 2.0, -INF, -INF], [-INF, -INF, 1.0, 2.0, -INF]]
    assert Problem.from_tables(gains, 3).gain_JC.tolist() == [
        [-INF, 1.0, -INF, -INF, -INF],
        [-INF, -INF, 1.0, -INF, -INF],
    ]
    with pytest.raises(Infeasible, match="2 jobs at their smallest do not fit") as caught:
        Problem.from_tables(gains, 2)
    assert (caught.value.needed, caught.value.available) == (3, 2)
    wide = Problem.from_tables(gains, 7)
    assert wide.gain_JC.tolist() == gains  # 5 and 6: all of it fits


def test_sizes_are_whole_numbers_from_0_on_and_capacities_too():
    assert Problem.from_tables([[0.0, 1.0]], 0, sizes=[0, 3]).size_JC.tolist() == [[0, 3]]
    for sizes in ([0, 1.5], [-1, 1], [0, math.nan]):
        with pytest.raises(InvalidValue, match="whole numbers, 0 or more"):
            Problem.from_tables([[0.0, 1.0]], 3, sizes=sizes)
    for capacity in (-1, 1.5):
        with pytest.raises(InvalidValue, match="capacity"):
            Problem.from_tables([[0.0, 1.0]], capacity)


@pytest.mark.parametrize(
    ("gains", "place"), [([[0.0, INF]], r"\[0, 1\]"), ([[0.0, 1.0], [math.nan, 0.0]], r"\[1, 0\]")]
)
def test_a_gain_that_is_none_is_named(gains, place):
    with pytest.raises(InvalidValue, match=f"gain_JC{place}"):
        Problem.from_tables(gains, 3)


@pytest.mark.parametrize("gains", [[1.0, 2.0], [[]], [[[1.0]]]])
def test_gains_are_a_table(gains):
    with pytest.raises(InvalidValue, match="a table of jobs by choices"):
        Problem.from_tables(gains, 3)


def test_who_has_no_choice_is_named():
    with pytest.raises(Infeasible, match="job 1 has no choice"):
        Problem.from_tables([[0.0, 1.0], [-INF, -INF]], 3)
    with pytest.raises(Infeasible, match="job 1 has no choice"):
        best_moves(Coupled.from_tables([[0.0, 1.0], [-INF, -INF]], [3]))


def test_a_bound_is_never_below_what_was_found():
    problem = Problem.from_tables([[0.0, 1.0], [0.0, 3.0]], 2)
    found = problem.split(np.array([1, 1]), price=0.5, method="core", bound=3.5)
    assert (found.total, found.bound, found.gap, found.width_J.tolist()) == (4.0, 4.0, 0.0, [1, 1])
    assert problem.split(np.array([1, 0]), price=0.5, method="core", bound=3.5).gap == 2.5
    assert problem.split(np.array([1, 0]), price=0.5, method="core").gap == 0.0


@pytest.mark.parametrize(
    ("gains", "sizes", "concave"),
    [
        ([0.0, 2.0, 3.0], None, True),
        ([0.0, 2.0, 4.0], None, True),  # as much again is not more
        ([0.0, 2.0, 4.1], None, False),
        ([-INF, 2.0, 3.0], None, True),  # one that must run
        ([0.0, 2.0, -INF], None, True),
        ([1.0, -INF, 1.5], None, False),  # a hole
        ([-INF, 2.0, -INF], None, True),
        ([0.0, 2.0, 3.0], [0, 2, 4], True),
        ([0.0, 2.0, 3.0], [0, 1, 4], False),
        ([0.0, 2.0, 3.0], [4, 2, 0], False),
        ([7.0], [3], True),
    ],
)
def test_a_table_is_concave_without_holes_and_with_steps_of_one_size(gains, sizes, concave):
    assert is_concave(Problem.from_tables([gains], 9, sizes=sizes)) is concave
    assert is_concave(Problem.from_tables([[0.0] * len(gains), gains], 18, sizes=sizes)) is concave


# ---------------------------------------------------------------------- several limits


def test_a_change_costs_and_to_start_is_none():
    """The first runs in its column 1, the second does not run."""
    asked = Coupled.from_tables([[0.0, 2.0, 3.0]] * 2, [9], current=[1, -1], change_cost=0.5, most_changes=1)
    assert asked.gain_JC.tolist() == [[-0.5, 2.0, 2.5], [0.0, 2.0, 3.0]]
    assert asked.changed_JC.tolist() == [[True, False, True], [False] * 3]
    assert asked.limit_R.tolist() == [9.0, 1.0]
    found = _answer(asked, np.array([2, 1]), price_R=np.zeros(2), bound=0.0, method="mip")
    assert (found.changes, found.total, found.bound, found.width_J.tolist()) == (1, 4.5, 4.5, [2, 1])


def test_without_pauses_who_holds_something_may_not_wait():
    asked = Coupled.from_tables([[0.0, 2.0]] * 3, [9], current=[1, 0, -1], may_pause=False)
    assert asked.gain_JC.tolist() == [[-INF, 2.0], [0.0, 2.0], [0.0, 2.0]]


def test_choices_are_allowed_up_to_the_limit_of_each_pool():
    asked = Coupled.from_tables([[0.0, 1.0, -INF]] * 2, [1, 2], sizes=[0, 1, 2], pools=[[0, 0, 0], [1, 1, 1]])
    assert allows(asked, np.array([1, 1]))
    assert not allows(asked, np.array([1, 2]))  # not allowed to the job
    both = Coupled.from_tables([[0.0, 1.0]] * 2, [1])
    assert allows(both, np.array([0, 1]))
    assert not allows(both, np.array([1, 1]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"current": [2]},
        {"current": [-2]},
        {"change_cost": -0.1},
        {"change_cost": INF},
        {"most_changes": -1},
        {"pools": [1, 1]},
        {"pools": [-1, 0]},
    ],
)
def test_what_cannot_be_is_refused(wrong):
    assert Coupled.from_tables([[0.0, 1.0]], [3], current=[1], change_cost=0.0, most_changes=0, pools=[0, 0])
    with pytest.raises(InvalidValue):
        Coupled.from_tables([[0.0, 1.0]], [3], **wrong)


def test_a_start_is_a_column_for_each_job():
    asked = Coupled.from_tables([[0.0, 1.0, 3.0]] * 2, [2, 2], pools=[0, 0, 1], most_changes=5)
    for start in ([2], [0, 3], [-1, 0], [[0, 1]]):
        with pytest.raises(InvalidValue, match="a column, 0 to 2, for each of 2 jobs"):
            best_moves(asked, start=start)
    assert (
        best_moves(asked, start=[0, 0]).total == best_moves(asked, start=[2, 2]).total == best_moves(asked).total == 4.0
    )


@pytest.mark.parametrize(
    ("tolerance", "time_limit_s", "taken"),
    [(0.0, 0.0, True), (0.99, INF, True), (1.0, INF, False), (-0.01, INF, False), (0.0, -0.01, False)],
)
def test_how_near_and_how_long_are_taken_from_nothing_on(tolerance, time_limit_s, taken):
    asked = Coupled.from_tables([[0.0, 1.0]], [3])
    if taken:
        assert best_moves(asked, tolerance=tolerance, time_limit_s=time_limit_s).total == 1.0
        return
    with pytest.raises(InvalidValue, match="tolerance, time_limit_s"):
        best_moves(asked, tolerance=tolerance, time_limit_s=time_limit_s)


# ---------------------------------------------------------------------- phases, and steps ahead


def phases(**facts):
    return Phases.from_tables([[[1.0, 2.0]], [[2.0, INF]]], [[3.0, 1.0]] * 2, **facts)


@pytest.mark.parametrize("given", [{"current": 2}, {"current": -2}, {"weight": 0.0}, {"weight": INF}, {"start": INF}])
def test_facts_of_phases_that_cannot_be_are_refused(given):
    with pytest.raises(InvalidValue):
        phases(**given)


def test_one_for_all_one_per_class_or_one_of_each():
    assert phases(current=1, weight=0.5, restart=INF, start=0.0).current_I.tolist() == [1, 1]
    assert phases(restart=4.0).restart_CI.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert phases(restart=[4.0, 5.0]).restart_CI.tolist() == [[4.0, 5.0], [4.0, 5.0]]
    assert phases(restart=[[4.0, 5.0], [6.0, 7.0]]).restart_CI.tolist() == [[4.0, 6.0], [5.0, 7.0]]
    for wrong in ([1.0, 2.0, 3.0], [[1.0], [2.0], [3.0]], -1.0, math.nan):
        with pytest.raises(InvalidValue, match="restart"):
            phases(restart=wrong)


def test_what_is_left_of_a_phase_takes_its_part_of_the_time():
    some = Phases.from_tables([[[4.0, 8.0], [2.0, INF]]], [[3.0, 1.0]])
    left = some.after([0.25], current=0)
    assert left.time_ECI[:, :, 0].tolist() == [[3.0, 6.0], [2.0, 0.0]]
    assert left.stuck_ECI[:, :, 0].tolist() == [[False, False], [False, True]]
    over = some.after([2.0], current=1)
    assert (over.time_ECI[:, :, 0].tolist(), over.current_I.tolist()) == ([[0.0, 0.0], [0.0, 0.0]], [1])
    assert not over.stuck_ECI.any()
    for done, current in (([-0.1], 0), ([0.1, 0.2], 0), ([0.1], 2), ([0.1], -2)):
        with pytest.raises(InvalidValue):
            some.after(done, current=current)


def ahead(**facts):
    stay = np.zeros((2, 2))
    return Ahead(**{"rate_C": np.ones(2), "pause_s": [stay, stay], "step_s": 60.0, "again_C": np.zeros(2), **facts})


def test_steps_ahead_are_as_long_as_each_other_or_each_as_told():
    assert list(ahead().lasts_s) == [60.0, 60.0]
    assert list(ahead(step_s=[1.0, 2.0]).lasts_s) == [1.0, 2.0]
    assert list(ahead(step_s=7).lasts_s) == [7, 7]
    for wrong in (0.0, [1.0], [1.0, 0.0], [1.0, 2.0, 3.0], math.nan):
        with pytest.raises(InvalidValue, match="step_s"):
            ahead(step_s=wrong)
    for wrong in ([], [np.zeros((2, 3))], [np.zeros((2, 2)), np.zeros((3, 3))]):
        with pytest.raises(InvalidValue, match="pause_s"):
            ahead(pause_s=wrong)
    ahead(pay_HC=np.zeros((2, 2)))
    with pytest.raises(InvalidValue, match="pay_HC"):
        ahead(pay_HC=np.zeros((1, 2)))
