"""Who moves first where choices are rounded, how far, and how often, on cases small enough to read."""

from __future__ import annotations

import numpy as np

from sublet.solve.mip.moves import near


def rounded(gain, use, left, *, loss=None, most_loss=np.inf):
    """One limit; without a loss at the prices, what all want most loses nothing."""
    gain_JC, use_RJC = np.array(gain, dtype=float), np.array([use], dtype=float)
    loss_JC = gain_JC.max(axis=1, keepdims=True) - gain_JC if loss is None else np.array(loss, dtype=float)
    found = near(loss_JC.argmin(axis=1), gain_JC, loss_JC, use_RJC, np.array([float(left)]), most_loss)
    return None if found is None else found.tolist()


def test_what_loses_least_for_what_it_gives_back_goes_first():
    """Two are too many: the first gives two back for 3, the others would lose 2 for each."""
    assert rounded([[0, 3], [0, 2], [0, 2]], [[0, 2], [0, 1], [0, 1]], left=2) == [0, 1, 1]


def test_what_is_left_over_goes_to_who_gains_most_by_it():
    nobody_yet = [[0, 9], [0, 9]]
    assert rounded([[0, 1], [0, 5]], [[0, 1], [0, 1]], left=1, loss=nobody_yet) == [0, 1]


def test_nobody_moves_to_what_loses_more_than_it_may():
    facts = {"gain": [[0, 3]], "use": [[0, 1]], "left": 0}
    assert rounded(**facts, most_loss=2.0) is None
    assert rounded(**facts, most_loss=3.0) == [0]  # just as much is allowed


def test_all_may_move_and_each_of_them_twice():
    """Per unit the first step down is the cheaper one, so that everybody goes down step by step."""
    assert rounded([[0, 1, 2]] * 4, [[0, 1, 3]] * 4, left=0) == [0] * 4
