"""`sublet up --on aws` where an anchor has the controller: it is told the budget; other options are no empty words."""

from __future__ import annotations

import json

import pytest

from sublet.api import client
from sublet.cli.main import run
from sublet.cli.work import hosted
from sublet.runtime.controller_host.record import Home, HostRecord, keep
from sublet.runtime.settings import Settings, settings_to_json

FACTS = {"region": "us-east-1", "token": "", "nonce": "", "expires_unix": 0, "user": "u", "python": "p"}
IN_FORCE = {"burn_limit_usd_per_h": None, "average_usd_per_h": None, "purse_usd": 20.0}


class Laptop:
    """With an anchor on which a controller runs that was started with a purse of 20, two nodes and `fifo`."""

    def __init__(self, folder, monkeypatch, capsys):
        self.capsys, self.raised, self.posted = capsys, [], []
        self.record = HostRecord(kind="t3.small", instance="i-1", address="1.2.3.4", home=Home.ANCHOR, **FACTS)
        keep(folder, self.record)
        started = Settings(state_dir=str(folder), provider="aws", purse_usd=20.0, most_nodes=2, policy="fifo")
        (folder / "settings.json").write_text(settings_to_json(started))
        monkeypatch.setenv("SUBLET_STATE", str(folder))
        monkeypatch.setattr(hosted, "raise_host", self._raise)
        monkeypatch.setattr(client, "connect", lambda *_: self)

    def _raise(self, state, settings, **_):
        self.raised.append(settings)
        return self.record

    def get(self, path):
        assert path == "/v1/budget"
        return IN_FORCE

    def post(self, path, body):
        assert path == "/v1/budget"
        self.posted.append(body)
        return {**IN_FORCE, **body}

    def up(self, *words, code=0):
        assert run(["up", "--on", "aws", *words]) == code
        found = self.capsys.readouterr()
        return found.err if code else found.out


@pytest.fixture
def laptop(tmp_path, monkeypatch, capsys):
    return Laptop(tmp_path, monkeypatch, capsys)


def test_without_an_option_nothing_is_changed_and_what_is_told_is_in_force(laptop):
    told = laptop.up()
    assert laptop.posted == []
    assert "USD 20 in all;" in told
    assert len(laptop.raised) == 1


def test_a_limit_is_told_to_the_controller_alone_and_what_it_answers_is_shown(laptop):
    told = laptop.up("--purse", "40")
    assert laptop.posted == [{"purse_usd": 40.0}]
    assert "USD 40 in all;" in told
    found = json.loads(laptop.up("--budget", "3/h", "--json"))
    assert laptop.posted[1:] == [{"burn_limit_usd_per_h": 3.0}]
    assert (found["settings"]["burn_usd_per_h"], found["settings"]["policy"]) == (3.0, "fifo")


def test_what_it_was_started_with_may_be_said_again(laptop):
    laptop.up("--policy", "fifo", "--nodes", "2", "--anchor-type", "t3.small", "--provider", "aws")
    assert len(laptop.raised) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "las"], "--policy las (it has fifo)"),
        (["--nodes", "5"], "--nodes 5 (it has 2)"),
        (["--hurry"], "--hurry yes (it has no)"),
        (["--silence-s", "7.5"], "--silence-s 7.5 (it has"),
        (["--anchor-type", "t3.large"], "--anchor-type t3.large (it is a t3.small)"),
        (["--no-budget"], "--no-budget"),
    ],
)
def test_what_it_would_not_hear_of_is_refused_before_anything_is_done(laptop, words, said):
    told = laptop.up(*words, "--purse", "40", code=2) if words != ["--no-budget"] else laptop.up(*words, code=2)
    assert said in told
    assert "i-1" in told
    assert "next: 'sublet down'" in told
    assert laptop.raised == laptop.posted == []


@pytest.mark.parametrize("flag", ["--fresh", "--moved", "--foreground"])
def test_what_is_about_a_controller_here_is_refused_beside_on(laptop, flag):
    assert flag in laptop.up(flag, code=2)
    assert laptop.raised == []
