from __future__ import annotations

import math

import pytest

from sublet.errors import InvalidValue
from sublet.perf.phased import Phased


def make(*rates, ends=(10.0, 30.0, 40.0)):
    return Phased(ends=ends, rates=lambda gpu, spread: rates)


def test_each_phase_goes_at_its_own_rate():
    speed = make(1.0, 2.0, 5.0)
    assert [speed.rate("T4", (1,), done) for done in (0.0, 9.9, 10.0, 29.0, 30.0, 39.0)] == [1, 1, 2, 2, 5, 5]
    assert speed.seconds("T4", (1,), 0.0, 40.0) == 10.0 + 10.0 + 2.0
    assert speed.seconds("T4", (1,), 5.0, 12.0) == 5.0 + 1.0
    assert speed.work("T4", (1,), 5.0, 6.0) == 12.0
    assert speed.work("T4", (1,), 0.0, 22.0) == 40.0


def test_the_last_phase_goes_on():
    speed = make(1.0, 2.0, 5.0)
    assert speed.rate("T4", (1,), 1e9) == 5.0
    assert speed.seconds("T4", (1,), 40.0, 90.0) == 10.0
    assert speed.work("T4", (1,), 0.0, math.inf) == math.inf


def test_going_nowhere_takes_no_time():
    assert make(1.0, 2.0, 5.0).seconds("T4", (1,), 12.0, 12.0) == 0.0
    assert make(0.0, 0.0, 0.0).seconds("T4", (1,), 12.0, 12.0) == 0.0


def test_a_phase_with_rate_0_is_never_got_through():
    speed = make(1.0, 0.0, 5.0)
    assert speed.seconds("T4", (1,), 0.0, 10.0) == 10.0  # up to it
    assert speed.seconds("T4", (1,), 0.0, 10.1) == math.inf
    assert speed.seconds("T4", (1,), 15.0, 16.0) == math.inf
    assert speed.work("T4", (1,), 0.0, 1e9) == 10.0
    assert speed.work("T4", (1,), 15.0, 1e9) == 15.0
    assert speed.work("T4", (1,), 0.0, math.inf) == 10.0


def test_a_phase_with_rate_0_behind_us_does_not_matter():
    speed = make(0.0, 2.0, 5.0)
    assert speed.seconds("T4", (1,), 12.0, 40.0) == 9.0 + 2.0
    assert speed.work("T4", (1,), 12.0, 11.0) == 40.0


def test_rates_are_asked_for_once():
    asked = []

    def rates(gpu, spread):
        asked.append((gpu, spread))
        return [1.0, 1.0]

    speed = Phased(ends=(1.0, 2.0), rates=rates)
    for _ in range(5):
        speed.rate("T4", (4,), 0.0)
        speed.seconds("T4", (4,), 0.0, 2.0)
        speed.work("T4", (4,), 0.0, 2.0)
        speed.rate("T4", (2, 2), 0.0)
    assert asked == [("T4", (4,)), ("T4", (2, 2))]


@pytest.mark.parametrize("ends", [(), (0.0,), (-1.0, 2.0), (2.0, 2.0), (2.0, 1.0), (1.0, math.inf), (math.nan,)])
def test_ends_that_do_not_increase_are_refused(ends):
    with pytest.raises(InvalidValue, match="ends"):
        make(*[1.0] * len(ends), ends=ends)


@pytest.mark.parametrize("rates", [(1.0,), (1.0, 2.0, -1.0), (1.0, math.nan, 1.0), (1.0, math.inf, 1.0)])
def test_rates_that_cannot_be_are_refused_when_asked_for(rates):
    with pytest.raises(InvalidValue, match="rate"):
        make(*rates).rate("T4", (1,), 0.0)
