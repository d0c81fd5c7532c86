"""Lines are the same if their words are and their numbers nearly: times are not compared, nor what the rng change."""

from __future__ import annotations

import pytest

from sublet.runtime.rehearsal.comparing import Odd, Twins, first_odd


def odd(base, run, again=None, *, draws=False, repeats=False, usual=0.0):
    """The line that differs, here and there."""
    found = first_odd(base, run, Twins(base, again or base, draws, usual), repeats=repeats, workers=2)
    return None if found is None else (found.here, found.there)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("loss 0.5013", "loss 0.5014"),  # the last digit
        ("loss 12345.6", "loss 12346.1"),
        ("took 0.31 s", "took 2.7 s"),
        ("12.5 it/s", "3.1 it/s"),
        ("elapsed: 3.25", "elapsed: 9.75"),
        ("1 workers", "2 workers"),  # as many as there are
        ("loss nan", "loss nan"),
    ],
)
def test_these_are_the_same(one, two):
    assert odd([one], [two]) is None


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("loss 0.5013", "loss 0.5113"),
        ("seen 640", "seen 320"),
        ("seen 640", "seen 641"),
        ("step 3 loss 0.5", "step 3: loss 0.5"),
        ("loss 0.5", "loss nan"),
        ("2 workers", "1 workers"),
    ],
)
def test_these_are_not(one, two):
    assert odd([one], [two]) is not None


def test_a_line_that_comes_twice_or_not_at_all_differs():
    assert odd(["saved"], ["saved", "saved"]) == ("saved", "")
    assert odd(["saved", "saved"], ["saved"]) == ("", "saved")
    assert odd(["saved"], ["saved", "joined"]) == ("joined", "")


def test_numbers_that_differ_without_dice_are_no_matter():
    assert odd(["x 0.5", "y 1.5"], ["x 9.9", "y 1.5"], ["x 0.7", "y 1.5"]) is None
    assert odd(["x 0.5", "y 1.5"], ["x 9.9", "y 1.9"], ["x 0.7", "y 1.5"]) == ("y 1.9", "y 1.5")


def test_where_the_script_draws_a_number_may_be_three_times_as_far_off_as_with_other_dice():
    assert odd(["loss 1.00"], ["loss 1.05"], ["loss 1.02"], draws=True) is None
    assert odd(["loss 1.00"], ["loss 1.50"], ["loss 1.02"], draws=True) == ("loss 1.50", "loss 1.00")


def test_one_number_that_is_near_by_chance_may_be_as_far_off_as_losses_are_but_a_count_is_exact():
    options = {"draws": True, "usual": 0.05}
    assert odd(["loss 1.000"], ["loss 1.140"], ["loss 1.001"], **options) is None
    assert odd(["loss 1.000"], ["loss 1.200"], ["loss 1.001"], **options) == ("loss 1.200", "loss 1.000")
    assert odd(["seen 640"], ["seen 639"], **options) == ("seen 639", "seen 640")


def test_lines_of_which_there_is_no_pair_are_compared_only_where_nothing_is_drawn():
    for draws, found in ((True, None), (False, Odd("rank 1: 0.9", "rank 1: 0.5", 1.8))):
        assert first_odd(["rank 1: 0.5"], ["rank 1: 0.9"], Twins([], [], draws), repeats=False) == found


def test_a_line_whose_count_the_dice_change_is_not_counted():
    assert odd(["new best"], ["new best"] * 3, ["new best"] * 2) is None


def test_after_a_kill_a_line_may_come_twice_and_new_ones_may_come_but_none_may_say_something_else():
    base = ["start", "step 1 seen 32", "step 2 seen 64"]
    assert odd(base, ["start", *base, "resumed at 1"], repeats=True) is None
    assert odd(base, [*base, "step 2 seen 32"], repeats=True) == ("step 2 seen 32", "step 2 seen 64")
    assert odd(base, ["start", "step 1 seen 32"], repeats=True) == ("", "step 2 seen 64")
