"""A mean of ratios and its interval, worked out by hand."""

from __future__ import annotations

import math

import pytest

from sublet_lab.studies.ratio import Ratio


def test_the_interval_is_of_95_percent_by_student():
    """Of 1, 2 and 3 the deviation is 1; with two degrees of freedom 95 % lie within 4.303 of it."""
    found = Ratio.over([2.0, 2.0, 12.0], [2.0, 1.0, 4.0])
    assert found.mean == 2.0
    assert found.off == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_of_two_traces_it_is_wide():
    assert Ratio.over([1.0, 2.0], [1.0, 1.0]).off == pytest.approx(12.706205 / 2.0, rel=1e-6)


def test_one_trace_has_none():
    assert math.isnan(Ratio.over([3.0], [4.0]).off)


def test_ratios_that_are_there_already_are_taken_as_they_are():
    assert Ratio.of([1.0, 0.5]) == Ratio.over([3.0, 1.0], [3.0, 2.0])
