"""Alarms are counted one by one, and told at a rate that nobody can fill a disk with."""

from __future__ import annotations

from sublet.runtime.controller.watch import alarms
from sublet.runtime.controller.watch.alarms import AlarmKind, Alarms, Gauges
from sublet_lab.walls import WallOf


def sounded(*waves):
    """The lines told of these reasons, a minute between two waves."""
    rows, gauges, clock = [], Gauges(), [1_000.0]
    bell = Alarms(gauges, rows.append, wall=WallOf(lambda: clock[0]))
    for reasons in waves:
        for reason in reasons:
            bell.sound(AlarmKind.POLICY, f"because of {reason}", reason=reason)
        clock[0] += alarms.EVERY_S
    assert gauges.alarms["policy"] == sum(map(len, waves))
    return [row.text for row in rows]


def test_each_reason_is_told_once_in_a_while_however_they_take_turns():
    told = sounded(["a", "b", "a", "b", "a"], ["a"])
    assert told[:2] == ["because of a", "because of b"]
    assert told[2:] == ["because of a (and 2 more like it since the last such line)"]


def test_a_new_reason_each_time_is_told_so_many_times_and_no_more():
    told = sounded([f"r{number}" for number in range(1_000)])
    assert len(told) == alarms.MOST_REASONS + 1
