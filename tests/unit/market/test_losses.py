"""Chances of losses ahead: more after a fall, less as time goes by, by the sizes that were seen, by the hour."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import InvalidValue
from sublet.market.losses import LossesAhead

MINUTE = 60.0


def chance(falls):
    return sum(each for _, each in falls)


@given(
    history=st.lists(st.integers(0, 32), min_size=1, max_size=80),
    steps=st.integers(1, 20),
    excess=st.floats(0.0, 0.9),
    by_hour=st.booleans(),
)
def test_chances_are_chances_and_nobody_loses_more_than_there_is(history, steps, excess, by_hour):
    ahead = LossesAhead(excess=excess, half_life_ticks=4.0, by_hour=by_hour)
    found = ahead.falls(np.array(history, dtype=float), steps, 600.0)
    assert len(found) == steps
    for falls in found:
        assert 0.0 <= chance(falls) <= 1.05  # each is rounded to two digits
        assert all(0 < lost <= history[-1] for lost, _ in falls)


def test_after_a_fall_another_is_likelier_and_that_wears_off():
    struck = np.array([9.0] * 40 + [7.0])
    ahead = LossesAhead(excess=0.4, half_life_ticks=3.0)
    now, *_, late = ahead.falls(struck, 31, MINUTE)
    assert chance(now) > 0.4 > 8.0 * chance(late)
    half = ahead.falls(struck, 4, MINUTE)[3]
    assert chance(half) == pytest.approx(0.2 + chance(late), abs=0.02)


def test_without_clusters_all_ticks_ahead_are_alike():
    found = LossesAhead(excess=0.0, half_life_ticks=1.0).falls(np.array([9.0, 9.0, 7.0, 7.0]), 9, MINUTE)
    assert len(set(found)) == 1


def test_falls_that_a_cluster_explains_do_not_make_the_calm_after_it_seem_unsafe():
    burst = np.array([9.0, 8.0, 7.0, 6.0] + [6.0] * 60)
    alone = LossesAhead(excess=0.0, half_life_ticks=3.0).falls(burst, 1, MINUTE)[0]
    clustered = LossesAhead(excess=0.5, half_life_ticks=3.0).falls(burst, 1, MINUTE)[0]
    assert chance(clustered) < chance(alone)


def test_sizes_are_those_that_were_seen_and_one():
    history = np.array([20.0, 15.0, 15.0, 10.0, 10.0])
    falls = dict(LossesAhead(excess=0.0, half_life_ticks=1.0).falls(history, 1, MINUTE)[0])
    assert set(falls) == {1, 5}
    assert falls[5] == pytest.approx(2.0 * falls[1], rel=0.05)


def test_an_hour_that_saw_more_falls_is_less_safe_where_hours_count():
    ticks = np.arange(10 * 24)
    history = 20.0 - (ticks % 24 == 8)  # one lost at eight every day, back at nine
    at = {hour: history[: 9 * 24 + hour] for hour in (8, 15)}  # the next tick is of this hour
    for by_hour in (False, True):
        ahead = LossesAhead(excess=0.0, half_life_ticks=1.0, by_hour=by_hour)
        eight, three = (chance(ahead.falls(at[hour], 1, 3600.0)[0]) for hour in (8, 15))
        assert (eight > 1.3 * three) is by_hour


def test_nonsense_is_refused():
    with pytest.raises(InvalidValue, match="excess"):
        LossesAhead(excess=-0.1, half_life_ticks=1.0)
    with pytest.raises(InvalidValue, match="half_life_ticks"):
        LossesAhead(excess=0.1, half_life_ticks=0.0)
