"""Time that a clock has lost, and what a provider's record of a node says of it."""

from __future__ import annotations

import pytest

from sublet.kernel.ledger import Ledger
from sublet.runtime.clock import Clock
from sublet.runtime.controller.money.timekeeping import find_lost_time
from sublet_lab.memory_cloud import one_gpu_offer
from sublet_lab.walls import WallOf


def found(began_s, *, doubted_s, speedup=1.0):
    """By a node that was ordered at 100 s; it is 500 s now."""
    ledger = Ledger([one_gpu_offer("spot", 0.5)])
    ledger.open("n1", "spot", 100.0)
    clock = Clock(began_s=500.0, wall=WallOf(lambda: 0.0), doubted_s=doubted_s, speedup=speedup)
    lost_s = find_lost_time("n1", began_s, ledger=ledger, clock=clock)
    assert find_lost_time("n2", 0.0, ledger=ledger, clock=clock) == 0.0  # nobody has ordered it
    assert clock.now_s() == 500.0 + lost_s
    return lost_s


@pytest.mark.parametrize(
    ("began_s", "lost_s"),
    [(60.0, 40.0), (-20.0, 120.0), (99.0, 0.0), (100.0, 0.0), (130.0, 0.0), (None, 0.0)],
    ids=["before its order", "before everything", "whole seconds", "at once", "later", "no record"],
)
def test_a_node_that_began_before_its_order_shows_what_the_clock_has_lost_since(began_s, lost_s):
    assert found(began_s, doubted_s=200.0) == lost_s


@pytest.mark.parametrize("doubted_s", [0.0, 100.0], ids=["never", "before it was ordered"])
def test_where_no_clock_was_believed_since_its_order_it_is_the_record_that_is_wrong(doubted_s):
    assert found(60.0, doubted_s=doubted_s) == 0.0


def test_whole_seconds_of_the_wall_are_more_of_cloud_time_at_a_speed_up():
    assert found(60.0, doubted_s=200.0, speedup=60.0) == 0.0
    assert found(30.0, doubted_s=200.0, speedup=60.0) == 70.0
