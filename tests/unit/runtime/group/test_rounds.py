"""A round as a tuple, and as the one integer that agents and the store know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.group.rounds import LIVES, ROUNDS, Round

rounds = st.builds(Round, st.integers(0, 10_000), st.integers(0, LIVES - 1), st.integers(0, ROUNDS - 1))


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
    assert Round(generation=4, life=2, round=1).number == 4_000_002_001
    assert Round(life=3, round=ROUNDS - 1).after() == Round(life=4)
