"""When a controller that has ended is started again, and when nobody keeps it any more."""

from __future__ import annotations

import pytest

from sublet.runtime.anchor.keeper import MOST_SHORT, SHORT_S, STALE, after


@pytest.mark.parametrize(
    ("code", "fenced", "again"),
    [(0, False, False), (STALE, False, False), (1, False, True), (-9, False, True), (-9, True, False)],
)
def test_one_that_was_killed_is_started_again_and_one_that_has_ended_or_was_handed_over_is_not(code, fenced, again):
    assert after(code, SHORT_S + 1, 0, fenced=fenced)[0] is again


def test_one_that_never_lives_long_is_given_up_and_a_long_life_is_a_new_beginning():
    tries, short, again = 0, 0, True
    while again:
        again, short = after(1, 1.0, short, fenced=False)
        tries += 1
    assert tries == MOST_SHORT
    assert after(1, SHORT_S, MOST_SHORT - 1, fenced=False) == (True, 0)
