"""Random trees, jobs, prices, losses and periods: no job is charged a grain more than it may, no team is over
by more than an interval burns."""

from __future__ import annotations

import pytest

from sublet.kernel import allowances, invariants
from sublet.kernel.allowances import BudgetTree, Steps
from sublet_lab.budgets.__main__ import main
from sublet_lab.budgets.life import live
from sublet_lab.budgets.twin import Twin
from tests.rigs.sizes import sized


@pytest.mark.parametrize("seed", range(sized(12, 1000)))
def test_never_a_cent_over_a_jobs_purse_nor_an_interval_over_a_teams(seed):
    assert live(seed).broken == ""


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_laws_see_a_purse_that_is_spent_and_whose_jobs_stay(seed, monkeypatch):
    monkeypatch.setattr(BudgetTree, "end", lambda *_: Steps())
    monkeypatch.setattr(Twin, "_keeps", lambda *_: None)
    assert live(seed).broken.startswith("jobs paid from a spent budget leave: ")


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_the_twin_sees_who_is_over_by_more_than_an_interval_burns(seed, monkeypatch):
    monkeypatch.setattr(invariants, "_budgets_hold", lambda _: None)
    monkeypatch.setattr(BudgetTree, "end", lambda *_: Steps())
    assert "over by no more than an interval burns" in live(seed).broken


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_the_twin_sees_a_job_that_is_charged_more_than_it_has(seed, monkeypatch):
    monkeypatch.setattr(allowances, "EXACT", ())
    monkeypatch.setattr(BudgetTree, "end", lambda *_: Steps())
    monkeypatch.setattr(invariants, "_budgets_hold", lambda _: None)
    monkeypatch.setattr(Twin, "_keeps_within_an_interval", lambda *_: None)
    assert live(seed).broken


def test_the_command_tells_what_it_lived(capsys):
    assert main(["--seeds", "2", "--from", "7", "--processes", "1"]) == 0
    assert "laws broken: none" in capsys.readouterr().out
