"""A round as a tuple, and as the one integer that agents and the store know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.group.workers import BEGIN_S, GENERATIONS, ROUNDS, Round, era_after

YEAR_S = 365 * 86_400
eras = st.one_of(st.just(0), st.integers(1, 29 * YEAR_S))
rounds = st.builds(Round, eras, st.integers(0, GENERATIONS - 1), st.integers(0, ROUNDS - 1))


@given(rounds)
def test_a_round_comes_back_from_its_number(one):
    assert Round.from_number(one.number) == one


@given(rounds, rounds)
def test_later_rounds_have_greater_numbers(one, other):
    assert (one < other) == (one.number < other.number)


@given(rounds)
def test_the_next_round_is_the_next_number(one):
    assert one.after().number == one.number + 1


def test_the_numbers_are_those_that_running_agents_know():
    assert Round(generation=1).number == 1_000_000_000
    assert Round(generation=4, round=2_001).number == 4_000_002_001
    assert Round(era=7, generation=3, round=ROUNDS - 1).after() == Round(era=7, generation=4)


@given(rounds)
def test_the_numbers_fit_into_what_a_line_carries(one):
    assert one.number < 2**63


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_what_a_store_has_forgotten_is_below_all_that_it_will_number(known, forgotten, orders, later_s):
    """`known` stands in a backup; controllers and orders after it do not, and it is put back some time later."""
    last = era_after(known, BEGIN_S + known + forgotten)
    again = era_after(known, BEGIN_S + last + later_s)
    assert Round(era=again, generation=1).number > Round(era=last, generation=min(orders, GENERATIONS - 1)).number


def test_a_clock_that_was_set_back_makes_no_era_lower():
    assert era_after(5_000, BEGIN_S) == 5_001
    assert era_after(0, 0.0) == 1


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(1, 10**6))
def test_of_two_that_begin_on_one_copy_by_a_clock_that_is_behind_the_later_is_above(known, first_s, later_s):
    first = era_after(known, float(BEGIN_S), first_s)
    assert era_after(known, float(BEGIN_S), first_s + later_s) > first > known
