"""Weights, and classes that are replaced: the same as if the tables had been so from the beginning."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.solve.curves import Curve, Curves, alike

TIME = [[1.0, 0.5, 0.25], [1.0, 0.4, np.inf]]
COST = [[1.0, 2.0, 4.0], [1.0, 1.9, np.inf]]


def test_a_weight_divides_what_time_costs_and_multiplies_what_is_saved():
    """Steps of the first: 0.5 for 1 and 0.25 for 2, at 2 and 8; of the second 0.6 for 0.9, at 1.5."""
    plain = Curves.from_tables(TIME, COST)
    assert plain.price_S.tolist() == pytest.approx([1.5, 2.0, 8.0])
    assert plain.class_S.tolist() == [1, 0, 0]
    assert plain.cost_S.tolist() == pytest.approx([0.9, 1.0, 2.0])
    assert plain.time_S.tolist() == pytest.approx([0.6, 0.5, 0.25])
    for weights in ([4.0, 2.0], [4.0, 1.0]):
        heavy = Curves.from_tables(TIME, COST, weights)
        price = [1.5 / weights[1], 2.0 / 4.0, 8.0 / 4.0]
        order = np.argsort(price)
        assert heavy.price_S.tolist() == pytest.approx(np.array(price)[order].tolist())
        assert heavy.class_S.tolist() == np.array([1, 0, 0])[order].tolist()
        assert heavy.cost_S.tolist() == pytest.approx(np.array([0.9, 1.0, 2.0])[order].tolist())
        assert heavy.time_S.tolist() == pytest.approx(np.array([0.6 * weights[1], 2.0, 1.0])[order].tolist())
        assert heavy.curve(0).price.tolist() == [-np.inf, 0.5, 2.0]


@pytest.mark.parametrize(
    ("value", "poorer", "richer"),
    [(0.0, [0, 0], [0, 0]), (1.7, [0, 1], [0, 1]), (2.0, [0, 1], [1, 1]), (9.0, [2, 1], [2, 1])],
)
def test_each_class_takes_what_it_buys_at_a_value_of_time(value, poorer, richer):
    curves = Curves.from_tables(TIME, COST)
    assert curves.configs(value, richer=False).tolist() == poorer
    assert curves.configs(value, richer=True).tolist() == richer


@pytest.mark.parametrize("changed", [[0], [1], [2], [0, 2], [0, 1, 2]])
def test_classes_that_are_replaced_are_as_if_they_had_been_there(changed):
    rng = np.random.default_rng(11)
    time, cost, weight = rng.uniform(1, 9, (3, 4)), rng.uniform(1, 9, (3, 4)), rng.uniform(1, 3, 3)
    new_time, new_cost, new_weight = time.copy(), cost.copy(), weight.copy()
    for index in changed:
        new_time[index], new_cost[index] = rng.uniform(1, 9, 4), rng.uniform(1, 9, 4)
        new_weight[index] = rng.uniform(1, 3)
    others = {index: Curve.from_table(new_time[index], new_cost[index], new_weight[index]) for index in changed}
    found = Curves.from_tables(time, cost, weight).with_curves(others)
    right = Curves.from_tables(new_time, new_cost, new_weight)
    for name in ("price_S", "cost_S", "time_S", "weight_I"):
        assert getattr(found, name).tolist() == pytest.approx(getattr(right, name).tolist())
    assert found.class_S.tolist() == right.class_S.tolist()
    assert found.hulls.config_V.tolist() == right.hulls.config_V.tolist()
    assert found.hulls.start.tolist() == right.hulls.start.tolist()
    same = Curves.from_tables(time, cost, weight)
    assert same.with_curves({}) is same


def test_a_curve_of_another_weight_has_other_prices_and_nothing_else():
    curve = Curve.from_table(TIME[0], COST[0], 2.0)
    assert curve.price.tolist() == [-np.inf, 1.0, 4.0]
    other = curve.weighing(8.0)
    assert (other.price.tolist(), other.weight) == ([-np.inf, 0.25, 1.0], 8.0)
    assert (other.config.tolist(), other.time.tolist(), other.cost.tolist()) == ([0, 1, 2], TIME[0], COST[0])


def test_classes_of_one_table_and_one_weight_are_alike():
    first, group = alike([[1.0, 2.0]] * 4, [[3.0, 4.0], [3.0, 4.5], [3.0, 4.0], [3.0, 4.0]], [1.0, 1.0, 1.0, 2.0])
    assert (first.tolist(), group.tolist()) == ([0, 1, 3], [0, 1, 0, 2])
    first, group = alike([[1.0, 2.0]] * 2, [[3.0, 4.0]] * 2)
    assert (first.tolist(), group.tolist()) == ([0], [0, 0])


@pytest.mark.parametrize("weight", [[1.0], [1.0, 0.0], [1.0, -1.0], [np.inf, 1.0], [np.nan, 1.0]])
def test_weights_are_positive_and_one_per_class(weight):
    with pytest.raises(InvalidValue, match="weight_I"):
        Curves.from_tables(TIME, COST, weight)
