"""The names of timers in logs, there and back."""

from __future__ import annotations

import typing

import pytest

from sublet.domain.timers import (
    CheckPurse,
    FallDue,
    GrowAgain,
    MoveDue,
    PeriodOver,
    PlanAgain,
    RetryOffer,
    Timer,
    timer_from_text,
    timer_to_text,
)
from sublet.errors import InvalidValue

NAMES = {
    PlanAgain(): "plan",
    RetryOffer("aws spot/1"): "retry aws spot/1",
    CheckPurse(): "purse",
    GrowAgain(): "grow",
    FallDue(): "fall",
    MoveDue(): "move",
    PeriodOver(): "period",
}


def test_every_timer_has_the_name_that_logs_have_always_had():
    assert {type(timer) for timer in NAMES} == set(typing.get_args(Timer))
    for timer, name in NAMES.items():
        assert timer_to_text(timer) == name
        assert timer_from_text(name) == timer


@pytest.mark.parametrize(
    "text", ["", "plan ", "plan o", "purse now", "grow 1", "fall o", "move a", "retry", "retry ", "Plan", "other"]
)
def test_a_name_of_no_timer_is_refused(text):
    with pytest.raises(InvalidValue, match="timer"):
        timer_from_text(text)
