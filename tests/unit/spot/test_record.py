from __future__ import annotations

import pytest

from sublet.errors import InvalidValue
from sublet.planning.lookahead import AnnouncedLoss
from sublet.spot.record import Record


def test_without_notice_moments_are_the_ticks():
    moments = Record(capacity=(4, 4, 3), before=(2,)).moments()
    assert [(each.at_s, each.lasts_s, each.was, each.now) for each in moments] == [
        (0.0, 60.0, 2, 4),
        (60.0, 60.0, 4, 4),
        (120.0, 60.0, 4, 3),
    ]
    assert not any(each.warned for each in moments)


def test_a_loss_is_announced_ahead_of_it_and_an_arrival_is_not():
    moments = Record(capacity=(4, 6, 3)).moments(25.0)
    assert [each.at_s for each in moments] == [0.0, 60.0, 95.0, 120.0]
    assert [each.warned for each in moments] == [(), (), (AnnouncedLoss(25.0, 3),), ()]
    assert [each.on_tick for each in moments] == [True, True, False, True]


def test_several_losses_may_be_announced_at_a_time():
    moments = Record(capacity=(6, 5, 3)).moments(120.0)
    assert moments[0].warned == (AnnouncedLoss(60.0, 1), AnnouncedLoss(120.0, 2))
    assert moments[1].warned == (AnnouncedLoss(60.0, 2),)


def test_changes_between_ticks_are_moments_and_all_time_is_covered():
    record = Record(capacity=(4, 2), between=((30.0, 3), (90.0, 5)))
    moments = record.moments(10.0)
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
