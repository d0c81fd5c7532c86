"""Where one thing turns into another: the first that is wrong, tables that look alike, how much of all is tried."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.solve.curves import Curve, alike, lower_left
from sublet.solve.mip.moves import _most_loss, allows, lowest_bound, total
from sublet.solve.phases import Phases
from sublet.solve.plan_book import plan_book
from sublet.solve.price import frontier
from tests.rigs.coupled import by_use


def test_the_first_entry_below_nothing_is_named_and_not_what_is_nothing_or_little():
    fine = [[0.0, 0.5], [1.0, 2.0]]
    for row, column in ((0, 1), (1, 0), (1, 1)):
        wrong = [list(each) for each in fine]
        wrong[row][column] = -0.25
        with pytest.raises(InvalidValue, match=rf"time_IC\[{row}, {column}\] = -0.25"):
            lower_left(wrong, fine)
        with pytest.raises(InvalidValue, match=rf"cost_IC\[{row}, {column}\] = -0.25"):
            lower_left(fine, wrong)


@pytest.mark.parametrize(("cost", "value"), [(1.5, 0.25), (1.0, 0.0), (3.0, 1.0)])
def test_the_value_of_time_of_phases_is_that_of_the_step_which_the_budget_reaches(cost, value):
    """From 4 hours for 1 to 2 hours for `cost`, and half of that is there."""
    jobs = Phases.from_tables([[[4.0, 2.0]]], [[0.25, cost / 2.0]])
    found = frontier(plan_book(jobs).curves, [1.0]).at((1.0 + cost) / 2.0)
    assert found.value_of_time == (value or math.inf)  # who pays no more for the faster one has it


# ---------------------------------------------------------------------- tables that look alike


def with_one_fingerprint():
    """Two tables of one configuration that differ, and of which `alike` makes the same number at first.

    It adds up the bits of each entry, mixed and times an odd factor: what one entry has more the next can make up for.
    """
    factor = [(at * 0x9E3779B97F4A7C15 | 1) % 2**64 for at in (1, 2)]

    def mixed(number):
        bits = int(np.float64(number).view(np.uint64))
        return bits ^ (bits >> 32)

    def unmixed(bits):
        return float(np.uint64(bits ^ (bits >> 32)).view(np.float64))

    time, cost = mixed(1.5), mixed(2.5)
    for more in range(1, 10_000):
        other = unmixed((time + more) % 2**64), unmixed((cost - more * factor[0] * pow(factor[1], -1, 2**64)) % 2**64)
        if all(1e-9 < each < 1e9 for each in other):
            return (1.5, 2.5), other
    raise AssertionError("none of these is a number that could be")


def test_two_tables_with_one_fingerprint_are_kept_apart():
    one, other = with_one_fingerprint()
    rows = [other, one, other, one, (3.0, 4.0)]
    first, group = alike([[time] for time, _ in rows], [[cost] for _, cost in rows])
    assert (first.tolist(), group.tolist()) == ([0, 1, 4], [0, 1, 0, 1, 2])


def test_a_curve_weighs_what_it_is_told():
    curve = Curve.from_table([4.0, 2.0], [1.0, 2.0], 0.5)
    assert (curve.price.tolist(), curve.weight) == ([-math.inf, 1.0], 0.5)


# ---------------------------------------------------------------------- how much is tried


def test_no_more_choices_are_tried_than_asked_for_and_none_that_cannot_be_better():
    outcomes = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        gain, use = rng.uniform(0.0, 9.0, (4, 5)), rng.integers(0, 4, (2, 4, 5))
        gain[:, 0], use[:, :, 0] = 0.0, 0
        asked = by_use(gain, rng.integers(2, 8, 2).tolist(), use)
        proof = lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R)
        losses = sorted(proof.losses().ravel().tolist())
        known = [np.zeros(4, dtype=int), *(each for each in rng.integers(0, 5, (40, 4)) if allows(asked, each))]
        best_J = max(known, key=lambda each, asked=asked: total(asked, each))
        better = proof.bound - total(asked, best_J)
        for count in (0, 3, 9, 15, 16, 99):  # beside the best of each
            some = losses[4 + count] if 4 + count < len(losses) else math.inf
            assert _most_loss(asked, proof.losses(), proof, None, count) == (some, some == math.inf)
            assert _most_loss(asked, proof.losses(), proof, best_J, count) == (min(some, better), better <= some)
            outcomes.add(better <= some)
    assert outcomes == {True, False}
