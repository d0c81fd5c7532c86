"""What an earlier controller noted of a job's bill, and what the log has beyond that."""

from __future__ import annotations

from sublet.runtime.controller.money.bill import Account


def test_what_it_would_have_cost_on_demand_grows_with_what_was_not_noted():
    account = Account(useful=1_000, on_demand=5_000)  # as the log is replayed: five times as dear
    account.restore_split({"useful": 400, "redone": 100, "on_demand": 2_000}, "useful")
    assert (account.useful, account.redone, account.total.grains) == (900, 100, 1_000)
    assert account.on_demand == 2_000 + 500 * 5


def test_nothing_was_noted_yet():
    account = Account(useful=1_000, on_demand=5_000)
    account.restore_split({"useful": 0, "on_demand": 0}, "useful")
    assert (account.useful, account.on_demand) == (1_000, 5_000)
