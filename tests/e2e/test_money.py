"""Budgets on the command line: what is promised is kept, and recorded prices are paid."""

from __future__ import annotations

import pytest


def test_a_purse_is_nearly_spent_and_never_overspent(sublet):
    answer = sublet("simulate", "pollux-1", "--jobs", 40, "--budget", 63, "--purse", 40, "--json").json
    assert answer["unfinished"], "the budget must be too small, or nothing is tested"
    assert 0.97 * 40 <= answer["metrics"]["usd"] <= 40


@pytest.mark.parametrize("purse", ["nan", "-3", "0", "much"])
def test_a_purse_is_a_positive_amount(sublet, purse):
    answer = sublet("simulate", "pollux-1", "--jobs", 2, "--budget", 63, "--purse", purse)
    assert answer.code == 2
    assert "--purse" in answer.err
    assert purse in answer.err


def test_recorded_prices_change_the_bill_and_nothing_that_is_seeded(sublet):
    command = ("simulate", "pollux-1", "--jobs", 20, "--budget", 63, "--offer", "aws:g4dn.12xlarge:us-east-1:spot")
    today = sublet(*command, "--json").json
    then = sublet(*command, "--prices-since", "2025-06-01", "--json").json
    assert then["metrics"]["usd"] != today["metrics"]["usd"]
    assert any("2025-06-01" in note for note in then["notes"])
    assert sublet(*command, "--prices-since", "2025-06-01", "--json").json["metrics"]["usd"] == then["metrics"]["usd"]


def test_prices_that_nobody_recorded_are_refused(sublet):
    answer = sublet("simulate", "pollux-1", "--jobs", 2, "--budget", 63, "--prices-since", "1999-01-01")
    assert answer.code == 2
    assert "1999-01-01" in answer.err
