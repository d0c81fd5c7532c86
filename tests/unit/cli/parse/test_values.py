"""Texts to values: money, durations, counts, speedups, policies."""

from __future__ import annotations

import pytest

from sublet.cli.options import complete_policies, complete_policy
from sublet.cli.parse.scenario import policies_from_names
from sublet.cli.parse.values import (
    parse_count,
    parse_dollars,
    parse_duration_s,
    parse_names,
    parse_price,
    parse_quotas,
    parse_speedup,
    parse_variable,
    parse_workers,
)
from sublet.domain.money import Price
from sublet.errors import InvalidValue, UnknownName
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.policies.fifo import Fifo


@pytest.mark.parametrize("text", ["60", "60.0", "USD 60", "$60", " 60 /h", "6e1"])
def test_a_price_may_be_written_as_people_write_it(text):
    assert parse_price("--budget", text) == Price(60_000_000)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "60 EUR", "sixty", "1,000"])
def test_what_is_no_price_is_refused_with_the_option_and_the_text(text):
    with pytest.raises(InvalidValue, match=r"--budget = ") as caught:
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


@pytest.mark.parametrize(("text", "seconds"), [("8h", 28_800), ("90m", 5_400), ("1h30m", 5_400), ("2d", 172_800)])
def test_a_duration_is_read_as_in_a_job_file(text, seconds):
    assert parse_duration_s("--deadline", text, allowed="a time") == seconds


def test_a_duration_without_a_unit_has_the_one_that_the_option_says_or_is_refused():
    assert parse_duration_s("--deadline", "12", unit="h", allowed="a time") == 43_200
    with pytest.raises(InvalidValue, match=r"--deadline = '12' .* a time"):
        parse_duration_s("--deadline", "12", allowed="a time")


@pytest.mark.parametrize(("text", "usd"), [("2e-5", 2e-5), ("USD 40", 40.0), ("$40/h", 40.0), ("0", 0.0)])
def test_dollars_may_be_as_few_as_those_of_a_sample(text, usd):
    assert parse_dollars("--price", text, unit="/h", allowed="dollars") == usd


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much", ""])
def test_a_limit_in_dollars_is_above_0_or_refused_by_its_option(text):
    with pytest.raises(InvalidValue, match=r"--budget = .* dollars above 0"):
        parse_dollars("--budget", text, allowed="dollars above 0", above_0=True)


@pytest.mark.parametrize(("text", "count"), [("50M", 5e7), ("2.5G", 2.5e9), ("300000", 3e5), ("1k", 1e3)])
def test_counts_may_have_a_letter(text, count):
    assert parse_count("--samples", text) == count


@pytest.mark.parametrize("text", ["", "M", "0", "-5", "5X", "inf", "5MM"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(InvalidValue, match="--samples"):
        parse_count("--samples", text)


def test_names_quotas_and_variables_are_read_one_by_one():
    assert parse_names("--kinds", "T4, A100") == ["T4", "A100"]
    assert parse_quotas(["A100=64", "T4=0"]) == {"A100": 64.0, "T4": 0.0}
    assert parse_variable("A=b=c") == ("A", "b=c")
    assert parse_workers("2..8") == (2, 8)


@pytest.mark.parametrize("texts", [["A100"], ["A100=-1"], ["=3"], ["A100=1", "A100=2"], ["A100=inf"]])
def test_a_quota_is_a_kind_and_a_number_once(texts):
    with pytest.raises(InvalidValue, match="--quota"):
        parse_quotas(texts)
