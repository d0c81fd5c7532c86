"""Weights, and classes that are replaced: the same as if the tables had been so from the beginning."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.solve.curves import Curves, alike

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


def test_classes_of_one_table_and_one_weight_are_alike():
    first, group = alike([[1.0, 2.0]] * 4, [[3.0, 4.0], [3.0, 4.5], [3.0, 4.0], [3.0, 4.0]], [1.0, 1.0, 1.0, 2.0])
    assert (first.tolist(), group.tolist()) == ([0, 1, 3], [0, 1, 0, 2])
    first, group = alike([[1.0, 2.0]] * 2, [[3.0, 4.0]] * 2)
    assert (first.tolist(), group.tolist()) == ([0], [0, 0])


@pytest.mark.parametrize("weight", [[1.0], [1.0, 0.0], [1.0, -1.0], [np.inf, 1.0], [np.nan, 1.0]])
def test_weights_are_positive_and_one_per_class(weight):
    with pytest.raises(InvalidValue, match="weight_I"):
        Curves.from_tables(TIME, COST, weight)
