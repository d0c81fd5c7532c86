"""Whom a falling supply takes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sublet.market.replay import choose_lost, draw_excess

NODES = [f"n{number}" for number in range(8)]
ends = st.dictionaries(st.sampled_from(NODES), st.sampled_from([10.0, 20.0, 30.0]))


def rng(seed=0):
    return np.random.default_rng(seed)


@given(st.integers(0, 8), st.integers(0, 10), st.integers(0, 99))
def test_exactly_the_excess_is_drawn_in_the_order_of_the_nodes(held, supply, seed):
    victims = draw_excess(NODES[:held], supply, rng(seed))
    assert len(victims) == max(0, held - supply)
    assert victims == [node for node in NODES[:held] if node in victims]


def test_nobody_is_drawn_and_no_chance_used_up_while_supply_lasts():
    dice = rng()
    assert draw_excess(NODES, 8, dice) == []
    assert dice.random() == rng().random()


def test_everybody_is_drawn_as_often_as_the_others():
    counts = dict.fromkeys(NODES, 0)
    dice = rng(1)
    for _ in range(4000):
        for node in draw_excess(NODES, 6, dice):
            counts[node] += 1
    assert all(900 < count < 1100 for count in counts.values())  # 1,000 each, and four standard deviations


@given(ends, st.integers(0, 8), st.sampled_from([5.0, 10.0, 25.0]), st.integers(0, 99))
def test_whose_end_was_announced_goes_first_and_the_rest_fits_the_supply(lost_s, supply, now_s, seed):
    gone = choose_lost(NODES, lost_s, supply, now_s, rng(seed))
    due = [node for node in NODES if lost_s.get(node, 99.0) <= now_s]
    assert gone[: len(due)] == due
    assert len(set(gone)) == len(gone)
    left = len(NODES) - len(gone)
    assert left == min(supply, len(NODES) - len(due))
