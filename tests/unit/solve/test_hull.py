from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.curves import lower_left

INF = math.inf


def vertices(time, cost):
    return lower_left([time], [cost]).config_V.tolist()


def test_a_convex_table_is_kept_whole_whatever_its_order():
    assert vertices([4.0, 2.0, 1.0], [1.0, 2.0, 5.0]) == [0, 1, 2]
    assert vertices([1.0, 4.0, 2.0], [5.0, 1.0, 2.0]) == [1, 2, 0]


def test_what_is_slower_and_dearer_is_left_out():
    assert vertices([4.0, 5.0, 2.0, 3.0], [1.0, 2.0, 3.0, 9.0]) == [0, 2]


def test_what_a_mixture_beats_is_left_out_even_if_nothing_else_does():
    assert vertices([4.0, 3.0, 2.0], [1.0, 2.5, 3.0]) == [0, 2]


def test_points_on_a_straight_line_are_left_out():
    assert vertices([4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]) == [0, 3]


def test_of_equal_entries_the_first_is_taken():
    assert vertices([2.0, 2.0, 1.0, 1.0], [1.0, 1.0, 3.0, 3.0]) == [0, 2]


def test_of_equally_cheap_entries_the_fastest_is_taken():
    assert vertices([9.0, 5.0, 7.0, 1.0], [1.0, 1.0, 1.0, 2.0]) == [1, 3]
    assert vertices([9.0, 5.0, 7.0], [0.0, 0.0, 0.0]) == [1]


def test_a_superlinear_start_is_never_used():
    # Speeds 1, 3, 4 on 1, 2, 4 GPUs: one GPU is the slowest and not even the cheapest per unit of work.
    width, speed = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 4.0])
    assert vertices(1 / speed, width / speed) == [1, 2]


@pytest.mark.parametrize("never", [INF, math.nan])
def test_what_cannot_run_is_passed_over(never):
    assert vertices([never, 4.0, 1.0, 2.0], [0.0, 1.0, never, 2.0]) == [1, 3]


def test_a_class_that_cannot_run_is_named():
    with pytest.raises(Infeasible, match="class 2 cannot run"):
        lower_left([[1.0], [2.0], [INF], [1.0]], [[1.0], [1.0], [1.0], [1.0]])


def test_a_low_last_point_unravels_a_long_chain():
    # Convex but for the last point, which lies so low that only the first survives beside it: the worst case in passes.
    time = np.append(np.linspace(2.0, 1.0, 60), 0.9)
    cost = np.append(1.0 + np.linspace(0.0, 1.0, 60) ** 2, 1.0 + 1e-6)
    assert vertices(time, cost) == [0, 60]


def test_prices_rise_along_each_class_and_restart_with_the_next():
    hulls = lower_left([[3.0, 2.0, 1.0], [5.0, 1.0, INF]], [[1.0, 2.0, 4.0], [0.0, 2.0, 7.0]])
    assert hulls.start.tolist() == [0, 3, 5]
    assert hulls.price_V.tolist() == [-INF, 1.0, 2.0, -INF, 0.5]


@pytest.mark.parametrize(
    ("time", "cost", "match"),
    [
        ([[1.0, -2.0]], [[1.0, 1.0]], r"time_IC\[0, 1\] = -2.0"),
        ([[1.0, 2.0]], [[1.0, -INF]], r"cost_IC\[0, 1\] = -inf"),
        ([[1.0, 2.0]], [[1.0]], "of the same shape"),
        ([1.0, 2.0], [1.0, 2.0], "classes by configurations"),
        ([[]], [[]], "classes by configurations"),
    ],
)
def test_nonsense_is_refused_with_its_place(time, cost, match):
    with pytest.raises(InvalidValue, match=match):
        lower_left(time, cost)
