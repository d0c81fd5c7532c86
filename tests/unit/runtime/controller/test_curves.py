"""The curve of a loss: bounded, rising in steps, and true at every point."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.controller.memory.records import MOST_POINTS, Curve


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(allow_nan=True)), max_size=300))
def test_a_curve_rises_in_steps_and_has_only_what_was_said(told):
    curve = Curve()
    for step, loss in told:
        curve.add(step, loss)
    steps = [step for step, _ in curve.points]
    assert steps == sorted(set(steps))
    assert set(curve.points) <= set(told)
    assert all(math.isfinite(loss) for _, loss in curve.points)


def test_a_long_curve_is_thinned_from_its_beginning_to_its_end():
    curve = Curve()
    for step in range(100_000):
        curve.add(step, 1.0 / (1 + step))
    assert MOST_POINTS // 4 < len(curve.points) <= MOST_POINTS
    gaps = [after - before for (before, _), (after, _) in zip(curve.points, curve.points[1:], strict=False)]
    assert max(gaps) <= 4 * min(gaps)
    assert curve.points[0][0] == 0
    assert curve.points[-1][0] > 99_000


def test_steps_that_are_made_again_stand_as_they_were_made_last():
    curve = Curve()
    for step, loss in ((1, 1.0), (2, 0.9), (3, 0.8), (2, 0.95), (3, 0.85)):
        curve.add(step, loss)
    assert curve.points == [(1, 1.0), (2, 0.95), (3, 0.85)]
