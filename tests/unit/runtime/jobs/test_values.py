"""How money, durations and ranges are written, in a job file and on the command line alike."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from sublet.domain.money import Money, Price
from sublet.errors import InvalidValue
from sublet.runtime.jobs import values


@pytest.mark.parametrize("text", [120, 120.0, "120", "120 USD", "USD 120", "$120", " 1.2e2 "])
def test_money_may_be_written_as_people_write_it(text):
    assert values.parse_money(text) == Money.from_usd(120)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "120 EUR", "120/h", "", True, None, "1e99", "9" * 400])
def test_what_is_no_money_is_refused_in_words(text):
    with pytest.raises(ValueError, match=re.escape(values.MONEY)):
        values.parse_money(text)


@pytest.mark.parametrize("text", ["60", "USD 60", "$60/h", "60 USD /h", 60])
def test_a_price_may_say_that_it_is_per_hour(text):
    assert values.parse_price(text) == Price(60_000_000)
    assert values.parse_dollars(text, unit="/h") == Decimal(60)


@pytest.mark.parametrize("text", ["-1", "60/day", "1e99", "nan"])
def test_what_is_no_price_is_refused_in_words(text):
    with pytest.raises(ValueError, match=re.escape(values.PRICE)):
        values.parse_price(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("4h30m", 16_200.0), ("90 min", 5400.0), ("2d", 172_800.0), ("500ms", 0.5), ("1m 500ms", 60.5)],
)
def test_a_duration_says_its_units(text, seconds):
    assert values.parse_duration_s(text) == seconds
    assert re.fullmatch(values.DURATION_PATTERN, text) or " min" in text, "an editor takes it for a mistake"


@pytest.mark.parametrize("text", ["", "10", "h", "0s", "-1h", "1h30", "1x", "9" * 400 + "d", 10, None])
def test_what_is_no_duration_is_refused_in_words(text):
    with pytest.raises(ValueError, match=re.escape(values.DURATION)):
        values.parse_duration_s(text)


def test_a_bare_number_is_a_duration_only_where_its_unit_is_plain():
    assert values.parse_duration_s("1.5", unit="h") == 5400.0
    assert values.parse_duration_s("90m", unit="h") == 5400.0
    with pytest.raises(ValueError, match="such as 30s"):
        values.parse_duration_s("1h30", unit="h")


@pytest.mark.parametrize(("text", "workers"), [(4, (4, 4)), ("4", (4, 4)), ("2..16", (2, 16)), (" 2 .. 16 ", (2, 16))])
def test_a_range_is_one_number_or_two(text, workers):
    assert values.parse_range(text) == workers


@pytest.mark.parametrize("text", ["0", "5..2", "1..5000", "2-4", "", True, 2.0])
def test_what_is_no_range_is_refused_in_words(text):
    with pytest.raises(ValueError, match="a number of workers such as 4"):
        values.parse_range(text)


def test_a_field_says_its_name_its_value_and_what_is_allowed():
    with pytest.raises(InvalidValue, match=r"--purse = 'much' .* dollars above 0"):
        values.parse_field("--purse", "much", values.parse_money)
    with pytest.raises(InvalidValue, match=r"--purse = 'much' .* a number such as 300"):
        values.parse_field("--purse", "much", values.parse_money, allowed="a number such as 300")
