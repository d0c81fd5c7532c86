"""Names to objects: prices, speedups, policies."""

from __future__ import annotations

import pytest

from sublet.cli.options import complete_policies, complete_policy
from sublet.cli.parse.scenario import policies_from_names
from sublet.cli.parse.values import parse_price, parse_speedup
from sublet.domain.money import Price
from sublet.errors import InvalidValue, UnknownName
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.policies.fifo import Fifo


@pytest.mark.parametrize("text", ["60", "60.0", "USD 60", "$60", " 60 /h", "6e1"])
def test_a_price_may_be_written_as_people_write_it(text):
    assert parse_price("--budget", text) == Price(60_000_000)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "60 EUR", "sixty", "1,000"])
def test_what_is_no_price_is_refused_with_the_option_and_the_text(text):
    with pytest.raises(InvalidValue, match="--budget = ") as caught:
        parse_price("--budget", text)
    assert caught.value.value == text


def test_speedups_have_names():
    assert parse_speedup("linear") == Linear()
    assert parse_speedup("amdahl:0.9") == Amdahl(parallel=0.9)
    assert parse_speedup("power:0.5") == PowerLaw(exponent=0.5)


@pytest.mark.parametrize("text", ["linear:2", "amdahl", "amdahl:x", "amdahl:1.5", "power:-1", "power:nan"])
def test_a_speedup_without_a_fraction_is_refused(text):
    with pytest.raises(InvalidValue, match="--speedup"):
        parse_speedup(text)


def test_an_unknown_speedup_gets_a_suggestion():
    with pytest.raises(UnknownName, match="did you mean power"):
        parse_speedup("powr:0.8")


def test_policies_come_by_name_in_the_order_asked_for():
    policies = policies_from_names(["fifo", "equal"])
    assert list(policies) == ["fifo", "equal"]
    assert policies["fifo"] == Fifo()


@pytest.mark.parametrize("names", [[], ["fifo", "fifo"]])
def test_no_policy_and_the_same_twice_are_refused(names):
    with pytest.raises(InvalidValue, match="--policies"):
        policies_from_names(names)


def test_completion_continues_the_last_of_several():
    assert complete_policy("fi") == ["fifo"]
    assert complete_policies("equal,fi") == ["equal,fifo"]
