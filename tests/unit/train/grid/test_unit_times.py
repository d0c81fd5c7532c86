"""What units take, timed while they train."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.train.grid import unit_times
from sublet.train.grid.stages import Part
from sublet.train.grid.unit_times import UnitTimes


class Clock:
    now_s = 0.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(unit_times, "WALL", found)
    return found


def test_a_part_times_its_own_units_and_shares_its_backward_out_among_them(clock):
    """The last of two parts of four blocks: what it does before its first block is to pass others over."""
    times = UnitTimes(4)
    for _ in range(2):
        times.begin_atom()
        clock.now_s += 5.0
        for block, seconds in ((2, 1.0), (3, 2.0), (4, 3.0)):
            times.enter(block)
            clock.now_s += seconds
        times.end_atom()
        times.enter(2)  # once more in the backward, where activations are computed again: not forward
        clock.now_s += 7.0
    times.backward_s = 24.0
    assert times.of(Part(2, 4, first=False, last=True)) == pytest.approx((0.0, 0.0, 0.0, 3.0, 6.0, 9.0))
    assert UnitTimes(4).of(Part(0, 4, first=True, last=True)) == ()
