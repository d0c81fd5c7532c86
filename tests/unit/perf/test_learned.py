"""Speeds that were measured while a job ran, and the curve between and beyond them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import InvalidValue
from sublet.perf.learned import Learned, Measured

rates = st.floats(1e-6, 1e6)
widths = st.integers(1, 64)
tables = st.dictionaries(widths, rates, min_size=1, max_size=5)


def learned(table, **facts):
    measured = tuple(Measured(gpu="T4", workers=workers, rate=rate) for workers, rate in table.items())
    return Learned(measured=measured, guess=1.0, **facts)


@given(tables)
def test_what_was_measured_is_what_it_says(table):
    speed = learned(table)
    for workers, rate in table.items():
        assert speed.rate("T4", (workers,), 0.0) == rate
        assert speed.rate("T4", (1,) * workers, 0.5) == rate


@given(tables, widths, widths)
def test_the_curve_never_falls_with_width_and_never_beats_linear_growth(table, one, other):
    """Between widths that were not measured."""
    speed = learned(table)
    narrow, wide = sorted({one, other} - table.keys() or {65, 66})[:1] * 2 if one == other else sorted((one, other))
    if narrow in table or wide in table:
        return
    slow, fast = speed.rate("T4", (narrow,), 0.0), speed.rate("T4", (wide,), 0.0)
    assert 0.0 < slow <= fast * (1 + 1e-9)
    assert fast <= slow * wide / narrow * (1 + 1e-9)


@given(st.floats(0.001, 1.0), st.floats(0.001, 10.0), st.sets(widths, min_size=2, max_size=4), widths)
def test_a_job_that_obeys_amdahl_is_known_from_two_widths(serial, parallel, measured, asked):
    def rate(workers):
        return 1.0 / (serial + parallel / workers)

    speed = learned({workers: rate(workers) for workers in measured})
    assert speed.rate("T4", (asked,), 0.0) == pytest.approx(rate(asked), rel=1e-6)


@given(tables, widths)
def test_sizes_that_the_owner_does_not_allow_have_no_speed(table, workers):
    assert learned(table, sizes=(100,)).rate("T4", (workers,), 0.0) == 0.0
    assert learned(table, sizes=(100,)).rate("T4", (100,), 0.0) > 0.0
    assert learned(table).rate("T4", (), 0.0) == 0.0


def test_nothing_measured_is_the_guess_and_another_kind_is_taken_for_average():
    assert learned({}).rate("T4", (1,), 0.0) == pytest.approx(1.0)
    assert learned({2: 8.0}).rate("A100", (2,), 0.0) == 8.0


def test_two_rates_for_one_width_are_refused():
    twice = tuple(Measured(gpu="T4", workers=2, rate=rate) for rate in (1.0, 2.0))
    with pytest.raises(InvalidValue, match="measured"):
        Learned(measured=twice, guess=1.0)
