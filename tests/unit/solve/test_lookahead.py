from __future__ import annotations

import doctest
import itertools

import numpy as np
import pytest

from sublet.errors import Infeasible, InvalidValue
from sublet.solve import lookahead
from sublet.solve.lookahead import Ahead, best_path


def value_of(ahead, start, left_s, path):
    """What a path is worth, step by step, and what is left of its last pause."""
    total, held = 0.0, start
    for step, config in enumerate(path):
        pause_s = ahead.pause_s[step][held, config]
        if pause_s > 0:
            left_s = pause_s + (ahead.again_C[config] if left_s > 0 else 0.0)
        if np.isinf(left_s):
            return -np.inf, 0.0
        total += ahead.rate_C[config] * max(0.0, ahead.step_s - left_s)
        total -= 0.0 if ahead.pay_HC is None else ahead.pay_HC[step, config]
        left_s, held = max(0.0, left_s - ahead.step_s), config
    return total, left_s


def random_ahead(rng, *, longest, money):
    count, steps = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    tables = []
    for _ in range(steps):
        pause = rng.uniform(0.0, longest, (count, count))
        pause[rng.random(pause.shape) < 0.2] = np.inf
        if rng.random() < 0.5:
            np.fill_diagonal(pause, 0.0)
        pause[:, 0] = 0.0  # suspended
        tables.append(pause)
    rate = np.array([0.0, *rng.uniform(1.0, 5.0, count - 1)])
    pay = rng.uniform(0.0, 100.0, (steps, count)) if money else None
    return Ahead(rate_C=rate, pause_s=tables, step_s=60.0, again_C=rng.uniform(0.0, 20.0, count), pay_HC=pay)


def test_the_examples_in_the_docstrings_hold():
    failed, tried = doctest.testmod(lookahead)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("money", [False, True])
def test_three_hundred_random_futures_have_the_best_path(money):
    rng = np.random.default_rng(3)
    for _ in range(300):
        ahead = random_ahead(rng, longest=60.0, money=money)  # a pause that ends within its step is never carried over
        start = int(rng.integers(len(ahead.rate_C)))
        found = best_path(ahead, start)
        every = itertools.product(range(len(ahead.rate_C)), repeat=len(ahead.pause_s))
        best = max(value_of(ahead, start, 0.0, path)[0] for path in every)
        assert found.value == pytest.approx(best)
        assert value_of(ahead, start, 0.0, found.config_H)[0] == pytest.approx(best)


def test_long_pauses_are_carried_over_and_paths_are_worth_what_they_say():
    rng, behind = np.random.default_rng(4), []
    for _ in range(300):
        ahead = random_ahead(rng, longest=150.0, money=bool(rng.integers(2)))
        start, left_s = int(rng.integers(len(ahead.rate_C))), float(rng.choice([0.0, 0.5, 45.0]))
        found = best_path(ahead, start, left_s=left_s)
        value, rest_s = value_of(ahead, start, left_s, found.config_H)
        assert found.value == pytest.approx(value)
        assert found.left_s == pytest.approx(rest_s)
        every = itertools.product(range(len(ahead.rate_C)), repeat=len(ahead.pause_s))
        worth = [
            total - ahead.rate_C[path[-1]] * rest
            for path in every
            for total, rest in [value_of(ahead, start, left_s, path)]
        ]
        behind.append(max(worth) - (value - ahead.rate_C[found.config_H[-1]] * rest_s))
    assert min(behind) >= -1e-6
    assert np.mean(np.array(behind) > 1e-6) < 0.1  # one unfinished way into a configuration is kept, not all


def test_it_waits_out_a_short_dip_and_leaves_for_a_long_one():
    pause = np.array([[0.0, 50.0, 50.0], [0.0, 0.0, 50.0], [0.0, 50.0, 0.0]])
    dip = pause.copy()
    dip[:, 2] = np.inf  # the large one is not to be had
    rate = np.array([0.0, 2.0, 3.0])
    short = Ahead(rate_C=rate, pause_s=[pause, dip, pause, pause], step_s=60.0, again_C=np.zeros(3))
    assert best_path(short, 1).config_H == (1, 1, 1, 1)
    long = Ahead(rate_C=rate, pause_s=[pause] * 5, step_s=60.0, again_C=np.zeros(3))
    assert best_path(long, 1).config_H == (2, 2, 2, 2, 2)


def test_suspending_is_chosen_when_rent_is_more_than_work_is_worth():
    stay = np.array([[0.0, 5.0], [0.0, 0.0]])
    pay = np.array([[0.0, 100.0]] * 3)
    ahead = Ahead(rate_C=np.array([0.0, 1.0]), pause_s=[stay] * 3, step_s=60.0, again_C=np.zeros(2), pay_HC=pay)
    assert best_path(ahead, 1).config_H == (0, 0, 0)


def test_a_future_without_a_way_is_infeasible():
    with pytest.raises(Infeasible, match="suspended"):
        best_path(Ahead(rate_C=np.ones(1), pause_s=[np.full((1, 1), np.inf)], step_s=60.0, again_C=np.zeros(1)), 0)


def test_tables_of_another_size_are_refused():
    with pytest.raises(InvalidValue, match="pause_s"):
        Ahead(rate_C=np.ones(2), pause_s=[np.zeros((3, 3))], step_s=60.0, again_C=np.zeros(2))
