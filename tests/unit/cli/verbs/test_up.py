"""`sublet up` goes on as it was: a flag changes one thing and says so, and nothing else is lost."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.cli.work import controller_process
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import BudgetChanged, NodeReady, PlanMade
from sublet.domain.money import Money, Price
from sublet.domain.plan import Plan
from sublet.kernel.journal import header_line, line_from
from sublet.kernel.kernel import Kernel
from sublet.runtime.settings import Settings, settings_from_json, settings_to_json
from sublet.runtime.store import MetaKey, Store
from sublet.testing.values import an_offer

DATA = Path(__file__).parents[3] / "data"
OLD = DATA / "state-0.1-382fdf2"
LOG_ALONE = DATA / "state-0.1-434ea1a"  # whose settings are lost


class Terminal:
    """`sublet up` in a state directory, with a controller that writes what a real one would and is killed at once."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.capsys = folder, capsys
        self.settings = None
        monkeypatch.setenv("SUBLET_STATE", str(folder))
        monkeypatch.setattr(controller_process, "start", self.start)

    def start(self, settings, *, foreground=False):
        assert not foreground
        self.settings = settings
        self.folder.mkdir(exist_ok=True)
        (self.folder / "settings.json").write_text(settings_to_json(settings))
        if not (self.folder / "log.sqlite").exists():
            self.happens(Budget(
                burn=None if settings.burn_usd_per_h is None else Price.from_usd_per_h(settings.burn_usd_per_h),
                purse=None if settings.purse_usd is None else Money.from_usd(settings.purse_usd),
            ))  # fmt: skip
        return "http://127.0.0.1:1"

    def happens(self, budget, *, rent=False, cloud=""):
        """The log of a kernel that was told of this budget, and perhaps rented a node."""
        offer, limits = an_offer("o", pool="p", cloud=cloud), {"o": Limit(max_nodes=2)}
        kernel, store = Kernel([offer], limits=limits), Store(self.folder / "log.sqlite")
        store.put("header", header_line([offer], limits, Budget()))
        events = [BudgetChanged(1.0, budget)]
        if rent:
            events += [PlanMade(1.0, Plan(hold={"o": 1}), 1), NodeReady(2.0, "n1")]
        for event in events:
            store.append(event.at_s, line_from(event, kernel.handle(event)))
        store.close()

    def up(self, *flags):
        self.settings = None
        self.code = run(["up", *flags])
        told = self.capsys.readouterr()
        self.out, self.err = told.out, told.err
        return self.settings


@pytest.fixture
def terminal(tmp_path, monkeypatch, capsys):
    return Terminal(tmp_path / "state", monkeypatch, capsys)


def test_a_purse_survives_a_restart_without_a_flag(terminal):
    assert terminal.up("--purse", "0.5", "--nodes", "3", "--policy", "srtf").purse_usd == 0.5
    again = terminal.up()
    assert (again.purse_usd, again.burn_usd_per_h, again.most_nodes, again.policy) == (0.5, None, 3, "srtf")
    assert "USD 0.5 in all, policy srtf, as before" in terminal.out


def test_a_policy_that_is_gone_is_told_with_where_its_name_comes_from(terminal):
    terminal.up("--policy", "srtf")
    file = terminal.folder / "settings.json"
    file.write_text(file.read_text().replace("srtf", "rented-by-moonlight"))
    assert terminal.up() is None
    assert terminal.code == 2
    assert "no policy is called 'rented-by-moonlight'" in terminal.err
    assert f"{terminal.folder} was last run with it" in terminal.err
    assert "sublet up --policy NAME" in terminal.err
    assert terminal.up("--policy", "fifo").policy == "fifo"


def test_a_flag_changes_one_thing_and_says_so(terminal):
    terminal.up("--purse", "0.5", "--nodes", "3")
    again = terminal.up("--purse", "2")
    assert (again.purse_usd, again.most_nodes) == (2.0, 3)
    assert "purse: USD 0.50 -> USD 2.00\n" in terminal.out
    assert "nodes:" not in terminal.out
    terminal.up("--nodes", "5")
    assert "nodes: 3 -> 5\n" in terminal.out


def test_a_newcomer_gets_a_limit_and_only_no_budget_removes_it(terminal):
    assert terminal.up().burn_usd_per_h == 2.0
    assert terminal.up("--purse", "3").burn_usd_per_h == 2.0
    gone = terminal.up("--no-budget")
    assert (gone.burn_usd_per_h, gone.purse_usd) == (None, None)
    assert "budget: USD 2.00/h -> no limit" in terminal.out


def test_the_budget_as_it_was_changed_at_run_time_survives(terminal):
    terminal.up("--purse", "0.5")
    terminal.happens(Budget(burn=Price.from_usd_per_h("3"), purse=Money.from_usd("7.25")))
    again = terminal.up("--policy", "fifo")
    assert (again.purse_usd, again.burn_usd_per_h) == (7.25, 3.0)


def test_the_budget_of_a_directory_of_the_version_before_is_the_one_that_was_topped_up(terminal):
    terminal.folder.mkdir()
    (terminal.folder / "log.sqlite").write_bytes(gzip.decompress((OLD / "log.sqlite.gz").read_bytes()))
    (terminal.folder / "settings.json").write_text((OLD / "settings.json").read_text())
    again = terminal.up()
    assert (again.purse_usd, again.burn_usd_per_h, again.most_nodes, again.speedup) == (6.5, 2.0, 2, 60.0)


def restore_log(terminal, budget, **facts):
    """A backup of the log alone, in an empty directory."""
    terminal.folder.mkdir()
    terminal.happens(budget, **facts)


def test_the_budget_of_a_log_whose_settings_are_lost_stands_and_is_said(terminal):
    restore_log(terminal, Budget(burn=Price.from_usd_per_h("1"), purse=Money.from_usd("1.5")), cloud="ray")
    found = terminal.up("--policy", "srtf", "--speedup", "60")
    assert (found.purse_usd, found.burn_usd_per_h) == (1.5, 1.0)
    assert (found.provider, found.engine, found.policy, found.speedup) == ("ray", "ray", "srtf", 60.0)
    assert "settings.json is missing: provider ray, the rest as at a first start\n" in terminal.out
    assert "budget as in the log: budget USD 1.00/h, purse USD 1.50\n" in terminal.out
    assert "speedup:" not in terminal.out  # nobody knows what it was
    assert "as before" not in terminal.out
    assert terminal.up().purse_usd == 1.5


def test_a_log_that_knows_its_settings_goes_on_with_them_alone(terminal):
    """A backup of log.sqlite alone: policy, market and speed-up are in it, and the budget as it was last."""
    restore_log(terminal, Budget(purse=Money.from_usd("1.5")), cloud="local")
    was = Settings(state_dir="/elsewhere", policy="srtf", speedup=60.0, notice_s=30.0, purse_usd=9.0)
    store = Store(terminal.folder / "log.sqlite")
    store.put(MetaKey.SETTINGS, settings_to_json(was))
    store.close()
    found = terminal.up()
    assert found == replace(was, state_dir=str(terminal.folder), purse_usd=1.5)
    assert "settings.json is missing: all as the log has it\n" in terminal.out
    assert "policy srtf, as before" in terminal.out
    terminal.up("--policy", "fifo")
    assert "policy: srtf -> fifo" in terminal.out
    assert "settings.json is missing" not in terminal.out


def test_a_budget_that_is_asked_for_changes_the_one_of_the_log(terminal):
    restore_log(terminal, Budget(purse=Money.from_usd("1.5")), cloud="local")
    found = terminal.up("--purse", "2")
    assert (found.purse_usd, found.burn_usd_per_h) == (2.0, None)
    assert "purse: USD 1.50 -> USD 2.00\n" in terminal.out


def test_the_provider_of_a_log_whose_settings_are_lost_cannot_change_under_its_nodes(terminal):
    restore_log(terminal, Budget(), cloud="ray", rent=True)
    assert terminal.up("--provider", "local") is None
    assert "provider: ray -> local cannot be while nodes are rented (n1)" in terminal.err
    assert terminal.up("--speedup", "60").provider == "ray"


def test_a_log_of_the_release_without_its_settings_asks_who_rented_and_keeps_its_purse(terminal):
    terminal.folder.mkdir()
    (terminal.folder / "log.sqlite").write_bytes(gzip.decompress((LOG_ALONE / "log.sqlite.gz").read_bytes()))
    assert terminal.up() is None
    assert terminal.code == 2
    assert "settings.json is missing, and log.sqlite does not name the provider" in terminal.err
    assert "sublet up --provider NAME" in terminal.err
    found = terminal.up("--provider", "local")
    assert (found.provider, found.engine, found.purse_usd, found.burn_usd_per_h) == ("local", "local", 6.5, None)
    assert "budget as in the log: purse USD 6.50\n" in terminal.out


def test_a_log_that_knows_neither_budget_nor_settings_asks_for_a_budget(terminal):
    terminal.folder.mkdir()
    store = Store(terminal.folder / "log.sqlite")
    store.append(1.0, json.dumps({"event": {"type": "NodeReady"}, "actions": []}))
    store.close()
    assert terminal.up("--provider", "local") is None
    assert "sublet up --budget USD/H" in terminal.err
    assert terminal.up("--provider", "local", "--budget", "1/h").burn_usd_per_h == 1.0


def test_what_rented_nodes_stand_on_cannot_change_and_the_refusal_says_what_differs_and_what_to_do(terminal):
    terminal.up("--speedup", "60")
    terminal.happens(Budget(), rent=True)
    assert terminal.up("--speedup", "30") is None
    assert terminal.code == 2
    assert "speedup: 60.0 -> 30.0 cannot be while nodes are rented (n1)" in terminal.err
    assert "sublet down" in terminal.err
    assert "--fresh" in terminal.err
    assert terminal.up("--nodes", "2") is not None  # which can change at any time


def test_fresh_begins_anew_and_deletes_nothing(terminal):
    terminal.up("--purse", "0.5")
    settings = terminal.up("--fresh")
    assert (settings.purse_usd, settings.burn_usd_per_h) == (None, 2.0)
    (aside,) = terminal.folder.parent.glob("state-before-*")
    assert str(aside) in terminal.out
    assert settings_from_json((aside / "settings.json").read_text()).purse_usd == 0.5


def test_fresh_is_refused_while_nodes_are_rented(terminal):
    terminal.up("--purse", "0.5")
    terminal.happens(Budget(), rent=True)
    assert terminal.up("--fresh") is None
    assert "nodes are rented (n1)" in terminal.err
    assert list(terminal.folder.parent.glob("state-before-*")) == []


def test_up_tells_machines_what_it_goes_on_with(terminal):
    terminal.up("--purse", "0.5")
    terminal.up("--purse", "2", "--json")
    found = json.loads(terminal.out)
    assert (found["kept"], found["settings"]["purse_usd"], found["address"]) == (True, 2.0, "http://127.0.0.1:1")
    assert found["changed"] == [{"field": "purse_usd", "old": "USD 0.50", "new": "USD 2.00"}]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--decide-limit", "0"),
        ("--nodes", "0"),
        ("--strike", "x"),
        ("--silence-s", "5"),
        ("--silence-s", "60"),
        ("--notice-s", "-1"),
        ("--boot-s", "-1"),
        ("--speedup", "0"),
        ("--seed", "-1"),
        ("--port", "70000"),
    ],
)
def test_a_wrong_option_is_named_as_it_was_typed(terminal, flag, value):
    for _ in range(2):  # at the first start, and at one that goes on
        assert terminal.up(f"{flag}={value}") is None
        assert terminal.code == 2
        assert f"error: {flag} = " in terminal.err
        terminal.up("--purse", "1")
