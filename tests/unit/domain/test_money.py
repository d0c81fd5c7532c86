"""Money adds up to the grain, and numbers that are no amounts are refused."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.money import GRAINS_PER_USD, Money, Price, microseconds
from sublet.errors import InvalidValue

micro_usd = st.integers(0, 10**12)
grains = st.integers(-(10**24), 10**24)
NOT_NUMBERS = ["", "abc", "1,5", "1.2.3", "USD 3", "--1", "0x10"]
NOT_FINITE = ["1e999999", "nan", "inf", "-inf", "Infinity", "sNaN", math.nan, math.inf, -math.inf, Decimal("NaN")]


def test_one_dollar_is_one_dollar_per_hour_for_an_hour():
    assert Money.from_usd("1") == Price.from_usd_per_h("1").over(microseconds(3600.0))
    assert Money.from_usd("1").grains == GRAINS_PER_USD == 1_000_000 * 3_600 * 1_000_000


@pytest.mark.parametrize("usd", [0.1, "0.1", Decimal("0.1")])
def test_a_tenth_of_a_dollar_is_exactly_that_however_it_is_written(usd):
    assert Money.from_usd(usd).grains * 10 == GRAINS_PER_USD
    assert Price.from_usd_per_h(usd) == Price(100_000)


@given(st.integers(-(10**15), 10**15), st.integers(0, 12))
def test_an_amount_with_up_to_twelve_decimals_is_exact(digits, places):
    usd = Decimal(digits).scaleb(-places)
    assert Money.from_usd(str(usd)).grains == int(Fraction(digits, 10**places) * GRAINS_PER_USD)


@given(grains, grains, grains)
def test_sums_do_not_depend_on_their_order(a, b, c):
    x, y, z = Money(a), Money(b), Money(c)
    assert (x + y) + z == x + (z + y)
    assert (x + y) - y == x
    assert (x < y) == (a < b)


@given(micro_usd, st.integers(0, 10**15), st.integers(0, 10**15))
def test_a_lease_cut_in_two_costs_what_it_costs_whole(price, first_us, second_us):
    rent = Price(price)
    assert rent.over(first_us) + rent.over(second_us) == rent.over(first_us + second_us)
    assert Fraction(rent.over(first_us).grains, GRAINS_PER_USD) == Fraction(price, 10**6) * Fraction(
        first_us, 3600 * 10**6
    )


@given(micro_usd)
def test_a_price_survives_its_way_through_a_float_and_through_text(micro):
    price = Price(micro)
    assert Price.from_usd_per_h(price.usd_per_h) == price
    assert Price.from_usd_per_h(repr(price.usd_per_h)) == price


@given(st.integers(-(10**9), 10**9))
def test_whole_micro_dollars_survive_their_way_through_a_float(micro):
    money = Money(micro * (GRAINS_PER_USD // 10**6))
    assert Money.from_usd(money.usd) == money


def test_a_price_finer_than_a_micro_dollar_is_rounded_to_the_nearest():
    assert Price.from_usd_per_h("0.0000014") == Price(1)
    assert Price.from_usd_per_h("0.0000016") == Price(2)


@given(st.integers(0, 2**50))
def test_the_clock_of_the_ledger_reads_whole_microseconds(us):
    assert microseconds(us / 1_000_000) == us


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE])
def test_what_is_no_finite_number_is_refused_as_money_and_as_price(value):
    with pytest.raises(InvalidValue) as money:
        Money.from_usd(value)
    assert money.value.field == "usd"
    with pytest.raises(InvalidValue) as price:
        Price.from_usd_per_h(value)
    assert price.value.field == "price_usd_per_h"


@pytest.mark.parametrize("value", [-1, "-0.01", -1e-9, Decimal(-3)])
def test_a_price_below_zero_is_refused(value):
    with pytest.raises(InvalidValue, match="price_usd_per_h"):
        Price.from_usd_per_h(value)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1"])
def test_a_price_is_a_whole_number_of_micro_dollars(value):
    with pytest.raises(InvalidValue, match="price"):
        Price(value)


def test_money_prints_as_people_write_it():
    assert str(Money.from_usd("1234.5")) == "USD 1,234.50"
    assert str(Money.from_usd("-0.5")) == "USD -0.50"
