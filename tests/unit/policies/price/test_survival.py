"""How much is left of jobs of which nothing is known, by those that are done and those that run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.policies.price.beliefs import left_of_all_h, survival

HOURS = st.one_of(st.floats(0.01, 100.0), st.sampled_from([1.0, 2.0, 3.0]))  # some at the same time


def by_hand(done, runs):
    """Kaplan and Meier as they are in textbooks: over all times at which some end, (at risk - ended) / at risk."""
    left, share = 1.0, {}
    for at in sorted(set(done)):
        risk = sum(1 for each in (*done, *runs) if each >= at)
        ended = sum(1 for each in done if each == at)
        share[at] = left * ended / risk
        left *= 1.0 - ended / risk
    return share, left


@given(st.lists(HOURS, max_size=12), st.lists(HOURS, max_size=12))
def test_it_is_what_textbooks_say(done, runs):
    found = survival(np.array(done), np.array(runs))
    share, beyond = by_hand(done, runs)
    summed = {at: found.share_A[found.need_A == at].sum() for at in set(found.need_A.tolist())}
    assert summed == pytest.approx(share)
    assert found.beyond == pytest.approx(beyond, abs=1e-9)
    assert found.share_A.sum() + found.beyond == pytest.approx(1.0)
    assert found.longest_h == max((*done, *runs), default=0.0)


def test_without_any_that_run_all_that_are_done_count_alike():
    found = survival(np.array([4.0, 1.0, 2.0]), np.zeros(2))
    assert found.need_A.tolist() == [1.0, 2.0, 4.0]
    assert found.share_A == pytest.approx([1 / 3] * 3)
    assert found.beyond == pytest.approx(0.0)


def test_one_that_runs_on_makes_long_ones_likelier():
    """Of those that got to 4 one of two ends there, in place of the only one."""
    found = survival(np.array([1.0, 4.0]), np.array([6.0]))
    assert found.share_A == pytest.approx([1 / 3, 1 / 3])
    assert found.beyond == pytest.approx(1 / 3)


def left(done, runs, *, newcomer=0.1, power=1.0):
    return left_of_all_h(np.array(runs, dtype=float), np.array(done, dtype=float), newcomer_h=newcomer, power=power)


def test_where_nothing_is_known_as_much_is_left_as_one_has_had():
    assert left([], [0.0, 0.0]) == pytest.approx([0.1, 0.1])


def test_what_is_left_is_weighed_by_how_likely_it_is():
    """A newcomer: one of 1 h, or as long as one imagined, 0.1 h. With power 1 that is 2 / (1 / 1 + 1 / 0.1)."""
    assert left([1.0], [0.0]) == pytest.approx([2.0 / 11.0])
    assert left([1.0], [0.0], power=0.5) == pytest.approx([(2.0 / (1.0 + 10.0**0.5)) ** 2])


def test_who_has_outlived_all_is_one_of_those_that_need_as_much_again():
    """Both that are known needed no more than 2 of its 8 h; 8.1 of what it had, or twice the longest, which it is."""
    assert left([1.0, 2.0], [8.0]) == pytest.approx([8.1])


def test_what_is_about_to_end_lasts_a_moment():
    """At 2 h one of 2.000001 has next to nothing left, which counts as 3.6 s; and one imagined 2.1 h."""
    assert left([2.000001], [2.0]) == pytest.approx([3.0 / (2.0 / 1e-3 + 1.0 / 2.1)], rel=1e-3)


def test_whoever_was_outlived_is_not_counted():
    """Of 3 that are done and itself: 1 was outlived, 4 and 7 have 2 and 5 h left, beyond is 1 of 4, 2 x 7 + 0.1 - 2."""
    with np.errstate(all="raise"):
        found = left([1.0, 4.0, 7.0], [2.0])
    # shares of four: a quarter ends at 1; of the three left one runs at 2; 4 and 7 share what is left by halves
    shares = np.array([4 * 3 / 4 / 2, 4 * 3 / 4 / 2, 0.0, 1.0])
    rest = np.array([2.0, 5.0, 12.1, 2.1])
    assert found == pytest.approx([shares.sum() / (shares / rest).sum()])


@given(st.lists(HOURS, max_size=12), st.lists(st.one_of(st.just(0.0), HOURS), min_size=1, max_size=12))
def test_it_is_finite_and_more_than_nothing(done, runs):
    found = left(done, runs, power=0.3)
    assert (found > 0.0).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("unit", [0.5, 3.0, 20.0])
def test_hours_may_be_counted_in_any_unit(unit):
    done, runs = np.array([1.0, 4.0, 7.0, 9.0]), np.array([0.0, 2.0, 5.5, 30.0])
    once = left(done, runs, newcomer=0.1, power=0.3)
    assert left(done * unit, runs * unit, newcomer=0.1 * unit, power=0.3) == pytest.approx(unit * once)
