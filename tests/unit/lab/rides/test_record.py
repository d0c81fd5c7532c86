from __future__ import annotations

import pytest

from sublet.errors import InvalidValue
from sublet_lab.rides.record import Record


def test_moments_are_the_ticks():
    moments = Record(capacity=(4, 4, 3), before=(2,)).moments()
    assert [(each.at_s, each.lasts_s, each.was, each.now) for each in moments] == [
        (0.0, 60.0, 2, 4),
        (60.0, 60.0, 4, 4),
        (120.0, 60.0, 4, 3),
    ]


def test_earlier_ticks_are_on_the_same_clock():
    record = Record(capacity=(4, 4, 3), before=(2, 2))
    assert record.begins_s == 120.0
    assert record.with_before() == [(0.0, 2), (120.0, 4), (240.0, 3)]


def test_changes_between_ticks_are_moments_and_all_time_is_covered():
    record = Record(capacity=(4, 2), between=((30.0, 3), (90.0, 5)))
    moments = record.moments()
    assert sum(each.lasts_s for each in moments) == record.span_s
    assert [(each.at_s, each.now) for each in moments if each.now != each.was] == [(0, 4), (30, 3), (60, 2), (90, 5)]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"capacity": ()}, "capacity"),
        ({"capacity": (1, -1)}, "capacity"),
        ({"capacity": (1, 2), "between": ((60.0, 1),)}, "between"),
        ({"capacity": (1, 2), "between": ((90.0, 1), (30.0, 2))}, "between"),
        ({"capacity": (1, 2), "between": ((130.0, 1),)}, "between"),
        ({"capacity": (1, 2), "step_s": 0.0}, "step_s"),
    ],
)
def test_nonsense_is_refused(more, field):
    with pytest.raises(InvalidValue, match=field):
        Record(**more)
