"""The cheapest way through places that come and go, beside one that tries everything."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet_lab.studies.regions.itinerary import cheapest_itinerary


def by_trying_everything(is_open, cost, carry, work, pause):
    """Unit by unit: stay, start anywhere, also anew where it is, or be nowhere; starts in vain are among them."""
    units, places = is_open.shape

    @cache
    def least(t, place, pausing, left, lies):
        if left == 0:
            return 0.0
        if t == units:
            return math.inf
        ways = [least(t + 1, None, 0, left, lies)]
        for to in range(places):
            if not is_open[t, to]:
                continue
            if to == place:
                ways.append(cost[t, to] + least(t + 1, to, max(0, pausing - 1), left - (pausing == 0), to))
            carried = 0.0 if lies is None else carry[lies, to]
            ways.append(carried + cost[t, to] + least(t + 1, to, max(0, pause - 1), left - (pause == 0), to))
        return min(ways)

    return least(0, None, 0, work, None)


def test_it_is_as_cheap_as_trying_everything():
    rng = np.random.default_rng(7)
    possible = 0
    for _ in range(150):
        units, places = int(rng.integers(2, 9)), int(rng.integers(1, 4))
        work, pause = int(rng.integers(1, 5)), int(rng.integers(0, 3))
        is_open = rng.random((units, places)) < 0.7
        cost = rng.integers(1, 6, (units, places)).astype(float)
        of_region = rng.integers(0, 2, places)
        carry = 2.0 * (of_region[:, None] != of_region[None, :])
        ours = cheapest_itinerary(is_open, cost, carry, work=work, pause=pause)
        assert ours == by_trying_everything(is_open, cost, carry, work, pause)
        possible += math.isfinite(ours)
    assert 50 < possible < 150  # some cases have a way, and some have none


def test_it_waits_for_the_cheap_place_as_long_as_time_allows():
    is_open = np.array([[True, False]] * 2 + [[True, True]] * 2)
    cost = np.array([[5.0, 1.0]] * 4)
    assert cheapest_itinerary(is_open, cost, np.zeros((2, 2)), work=2, pause=0) == 2.0
    assert cheapest_itinerary(is_open, cost, np.zeros((2, 2)), work=3, pause=0) == 7.0
    assert cheapest_itinerary(is_open, cost, np.full((2, 2), 10.0), work=3, pause=0) == 15.0  # not worth the move


def test_a_pause_is_paid_and_must_be_whole():
    is_open = np.array([[True], [False], [True], [True], [True]])
    cost = np.array([[1.0], [9.0], [2.0], [3.0], [4.0]])
    assert cheapest_itinerary(is_open, cost, np.zeros((1, 1)), work=2, pause=1) == 9.0
    assert cheapest_itinerary(is_open, cost, np.zeros((1, 1)), work=2, pause=2) == math.inf


@pytest.mark.parametrize("bad", [{"work": 0, "pause": 0}, {"work": 1, "pause": -1}])
def test_nonsense_is_refused(bad):
    with pytest.raises(InvalidValue):
        cheapest_itinerary(np.ones((2, 1), dtype=bool), np.ones((2, 1)), np.zeros((1, 1)), **bad)


def test_places_must_be_the_same_everywhere():
    with pytest.raises(InvalidValue):
        cheapest_itinerary(np.ones((2, 2), dtype=bool), np.ones((2, 2)), np.zeros((1, 1)), work=1, pause=0)
