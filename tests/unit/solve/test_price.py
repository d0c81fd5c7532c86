from __future__ import annotations

import doctest
import importlib
import math

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.curves import Curves, alike
from sublet.solve.price import frontier

# The published example: Amdahl with parallel part 0.8 and a square root, 0.4 jobs of size 1 arriving per unit of time
# in each class, one price per GPU, so that the budget is a mean number of GPUs.
FINE = np.linspace(1.0, 30.0, 29_001)
WHOLE = np.arange(1.0, 65.0)
RATES = [0.4, 0.4]


def amdahl(width, parallel=0.8):
    return 1 / ((1 - parallel) + parallel / width)


def curves_over(width):
    speed = np.stack((amdahl(width), np.sqrt(width)))
    return Curves.from_tables(1 / speed, width / speed)


@pytest.mark.parametrize("module", ["curves", "price", "phases"])
def test_the_examples_in_the_docstrings_hold(module):
    failed, tried = doctest.testmod(importlib.import_module(f"sublet.solve.{module}"))
    assert tried > 0
    assert failed == 0


def test_the_golden_example_is_met_exactly_with_whole_gpus():
    found = frontier(curves_over(WHOLE), RATES).at(2.0)
    mixed = (1 - found.share) * WHOLE[found.poorer] + found.share * WHOLE[found.richer]
    assert mixed == pytest.approx([6.0, 9.0])
    assert found.jobs / sum(RATES) == pytest.approx(1 / 3)
    assert found.spend == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("budget", "multiplier", "widths", "mean_time"),
    [(1.5, 0.2252, (4.21, 4.44), 0.4322), (2.0, 1 / 9, (6.0, 9.0), 1 / 3), (3.0, 0.0437, (9.57, 22.9), 0.2463)],
)
def test_the_golden_example_with_fractions_of_gpus(budget, multiplier, widths, mean_time):
    found = frontier(curves_over(FINE), RATES).at(budget)
    assert 1.0 / found.value_of_time == pytest.approx(multiplier, rel=1e-3)
    assert FINE[found.poorer] == pytest.approx(widths, rel=2e-3)
    assert FINE[found.richer] == pytest.approx(widths, rel=2e-3)
    assert found.jobs / sum(RATES) == pytest.approx(mean_time, abs=5e-5)
    assert found.spend == pytest.approx(budget)


@pytest.mark.parametrize("value", [0.5, 2.0, 9.0, 20.0])
def test_fine_tables_agree_with_the_closed_forms(value):
    parallel, power, alpha, beta, gamma = 0.9, 0.4, 1.0, 0.05, 0.002
    step_time = alpha / FINE + beta + gamma * FINE
    time = np.stack((1 / amdahl(FINE, parallel), FINE**-power, step_time))
    richer = frontier(Curves.from_tables(time, FINE * time), [1.0, 1.0, 1.0]).configs(value, richer=True)
    # -alpha / k^2 + gamma + (beta + 2 gamma k) / v = 0, as a cubic in k
    roots = np.roots([2 * gamma / value, gamma + beta / value, 0.0, -alpha])
    root = roots[(abs(roots.imag) < 1e-9) & (roots.real > 0)].real[0]
    best = [math.sqrt(parallel * value / (1 - parallel)), power * value / (1 - power), root]
    assert FINE[richer] == pytest.approx(np.clip(best, 1.0, 30.0), abs=2e-3)


def test_the_slope_of_the_frontier_is_one_over_the_value_of_time():
    line, step = frontier(curves_over(FINE), RATES), 1e-4
    for budget in (1.2, 1.7, 2.5):
        slope = (line.at(budget + step).jobs - line.at(budget - step).jobs) / (2 * step)
        assert slope == pytest.approx(-1.0 / line.at(budget).value_of_time, rel=1e-3)


def test_the_smallest_budget_buys_the_cheapest_plan():
    line = frontier(curves_over(WHOLE), RATES)
    assert line.least == pytest.approx(0.8)
    found = line.at(line.least)
    assert found.share == 0.0
    assert WHOLE[found.poorer].tolist() == [1.0, 1.0]
    assert found.spend == line.least


def test_less_than_the_smallest_budget_is_refused_with_what_would_do():
    with pytest.raises(Infeasible, match=r"raise it to 0\.8 or more") as caught:
        frontier(curves_over(WHOLE), RATES).at(0.7)
    assert caught.value.needed == pytest.approx(0.8)
    assert caught.value.available == 0.7


def test_a_budget_short_by_a_rounding_error_is_the_smallest_budget():
    line = frontier(curves_over(WHOLE), RATES)
    assert line.at(math.nextafter(line.least, 0.0)).share == 0.0


def test_too_much_money_buys_the_fastest_plan_and_no_more():
    line = frontier(curves_over(WHOLE), RATES)
    found = line.at(1e9)
    assert not found.binding
    assert found.value_of_time == math.inf
    assert WHOLE[found.poorer].tolist() == WHOLE[found.richer].tolist() == [64.0, 64.0]
    assert found.choice(0) == (63, 63)
    assert found.spend == line.most
    assert found.jobs == pytest.approx(0.4 / amdahl(64.0) + 0.4 / 8)


def test_one_configuration_each_leaves_nothing_to_choose():
    line = frontier(Curves.from_tables([[2.0], [3.0]], [[1.0], [1.0]]), [1.0, 2.0])
    assert line.least == line.most == 3.0
    assert line.at(3.0).jobs == 8.0
    assert line.at(3.0).richer.tolist() == [0, 0]
    assert [points.tolist() for points in line.points()] == [[3.0], [8.0], [0.0]]


def test_a_heavier_class_buys_its_time_first():
    time, cost = [[2.0, 1.0], [2.0, 1.0]], [[1.0, 2.0], [1.0, 2.0]]
    found = frontier(Curves.from_tables(time, cost, [1.0, 3.0]), [1.0, 1.0]).at(3.0)
    assert found.value_of_time == 1.0
    assert found.share == 0.0
    assert found.poorer.tolist() == [0, 1]
    assert found.jobs == 2.0 + 3.0 * 1.0


def test_classes_with_the_same_curve_are_mixed_alike():
    time, cost = [[2.0, 1.0]] * 3, [[1.0, 2.0]] * 3
    found = frontier(Curves.from_tables(time, cost), [1.0, 2.0, 3.0]).at(9.0)
    assert found.share == pytest.approx(0.5)
    assert found.poorer.tolist() == [0, 0, 0]
    assert found.richer.tolist() == [1, 1, 1]


def test_a_class_of_which_nothing_arrives_has_a_choice_but_no_weight():
    line = frontier(curves_over(WHOLE), [0.4, 0.0])
    found = line.at(0.8)
    assert found.spend == pytest.approx(0.8)
    assert WHOLE[found.richer[1]] == pytest.approx(found.value_of_time, abs=1.0)  # a square root takes v GPUs


def test_rent_free_configurations_need_no_budget():
    line = frontier(Curves.from_tables([[5.0, 2.0]], [[0.0, 0.0]]), [1.0])
    assert line.at(0.0).jobs == 2.0
    assert not line.at(0.0).binding


def test_the_corners_of_the_frontier_are_convex_and_lie_on_it():
    line = frontier(curves_over(WHOLE), RATES)
    spend, jobs, value = line.points()
    assert (np.diff(spend) > 0).all()
    assert (np.diff(jobs) < 0).all()
    assert value[0] == 0.0
    assert -np.diff(spend) / np.diff(jobs) == pytest.approx(value[1:])
    for at in (0, 5, len(spend) - 1):
        assert line.at(spend[at]).jobs == pytest.approx(jobs[at])


def test_classes_that_are_alike_are_one_class_with_their_work_added_up():
    rng = np.random.default_rng(2)
    kind = rng.integers(0, 5, 200)
    parallel = np.array([0.5, 0.7, 0.8, 0.9, 0.99])[kind][:, None]
    time = (1 - parallel) + parallel / WHOLE
    rates = rng.random(200)
    first, group = alike(time, WHOLE * time)
    assert len(first) == 5
    assert first.tolist() == sorted(np.unique(kind, return_index=True)[1].tolist())
    small = frontier(Curves.from_tables(time[first], WHOLE * time[first]), np.bincount(group, weights=rates))
    large = frontier(Curves.from_tables(time, WHOLE * time), rates)
    assert small.at(300.0).jobs == pytest.approx(large.at(300.0).jobs)
    assert small.at(300.0).richer[group].tolist() == large.at(300.0).richer.tolist()


def test_round_numbers_and_weights_keep_classes_apart():
    time = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0], [4.0, 8.0]])
    first, group = alike(time, np.ones((5, 2)), [1.0, 1.0, 1.0, 2.0, 1.0])
    assert first.tolist() == [0, 1, 3, 4]
    assert group.tolist() == [0, 1, 0, 2, 3]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda line: frontier(line.curves, [0.4]), "one rate per class, 2"),
        (lambda line: frontier(line.curves, [0.4, -1.0]), r"rate_I\[1\] = -1.0"),
        (lambda line: frontier(line.curves, [0.4, math.nan]), r"rate_I\[1\] = nan"),
        (lambda line: line.at(math.nan), "budget = nan"),
        (lambda line: Curves.from_tables([[1.0]], [[1.0]], [0.0]), r"weight_I\[0\] = 0.0"),
        (lambda line: Curves.from_tables([[1.0]], [[1.0]], [1.0, 1.0]), "one per class, 1"),
    ],
)
def test_nonsense_is_refused(call, match):
    with pytest.raises(InvalidValue, match=match):
        call(frontier(curves_over(WHOLE), RATES))
