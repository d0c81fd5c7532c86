"""Periods of the calendar and the holders of purses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import ORG, Holder, Level, Period, amount_text, calendar_text, named_owner
from sublet.domain.money import Money
from sublet.errors import InvalidValue


def unix(*date):
    return int(datetime(*date, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("period", "at", "end"),
    [
        (Period.DAY, (2026, 11, 17, 18, 37), (2026, 11, 18)),
        (Period.DAY, (2026, 12, 31, 23, 59, 59), (2027, 1, 1)),
        (Period.WEEK, (2026, 11, 17, 18, 37), (2026, 11, 23)),  # a Tuesday
        (Period.WEEK, (2026, 11, 23), (2026, 11, 30)),  # a Monday is of the week that it begins
        (Period.MONTH, (2026, 12, 5), (2027, 1, 1)),
        (Period.MONTH, (2028, 2, 1), (2028, 3, 1)),
        (Period.MONTH, (2028, 1, 31), (2028, 2, 1)),
    ],
)
def test_a_period_ends_where_the_calendar_says(period, at, end):
    assert period.ends(unix(*at)) == unix(*end)


@given(st.sampled_from(Period), st.floats(0.0, 2e11))
def test_the_end_of_a_period_is_ahead_and_of_the_next_one(period, unix_s):
    end = period.ends(unix_s)
    longest = {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 31}[period]
    assert 0 < end - unix_s <= longest * 86_400
    assert end % 86_400 == 0
    assert period.ends(end) > end
    if period is Period.MONTH:
        assert (datetime.fromtimestamp(0, UTC) + timedelta(seconds=end)).day == 1


def test_the_organisation_is_one_and_all_others_have_names():
    assert str(ORG) == "org"
    assert str(Holder(Level.TEAM, "vision")) == "team vision"
    with pytest.raises(InvalidValue, match="team"):
        Holder(Level.TEAM)
    with pytest.raises(InvalidValue, match="without a name"):
        Holder(Level.ORG, "us")
    with pytest.raises(InvalidValue, match="org or team or user or job"):
        Holder("club", "chess")


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 41, "ä"])
def test_names_of_owners_are_plain(name):
    with pytest.raises(InvalidValue, match="up to 40 letters"):
        named_owner("--team", name)


def test_amounts_and_dates_in_words():
    assert amount_text(Money.from_usd("500"), Period.MONTH) == "USD 500.00 a month"
    assert amount_text(Money.from_usd("20"), None) == "USD 20.00 in all"
    assert calendar_text(unix(2026, 12, 1)) == "2026-12-01 00:00 UTC"
