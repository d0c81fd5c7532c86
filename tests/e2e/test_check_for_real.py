"""`sublet check --for-real`: one node from the order to the end of its bill."""

from __future__ import annotations

import pytest

from sublet.errors import BadInput


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_node_is_rented_trained_on_and_given_back(state, sublet):
    answer = sublet("check", "--for-real", "-o", "json")
    assert answer.code == 0, answer.err
    steps = answer.json["steps"]
    assert [(step["name"], step["ok"]) for step in steps] == [
        ("start", True),
        ("node rented", True),
        ("agent there", True),
        ("first step", True),
        ("trained", True),
        ("given back", True),
    ]
    assert steps[3]["text"].startswith("torch ")
    assert steps[4]["text"] == "20 steps"
    assert list(state.iterdir()) == []  # nothing is left behind


def test_what_fails_is_told_in_its_own_words_and_the_node_goes_back(state, sublet, monkeypatch):
    monkeypatch.setattr("sublet.runtime.preflight.SCRIPT", "raise SystemExit('no such driver')  # from sublet import x")
    answer = sublet("check", "--for-real", "-o", "json")
    assert answer.code == 1
    by_name = {step["name"]: step for step in answer.json["steps"]}
    assert (by_name["first step"]["ok"], by_name["trained"]["ok"]) == (False, None)
    assert "no such driver" in by_name["first step"]["text"]
    assert by_name["given back"]["ok"]
    assert list(state.iterdir()) == []


def test_beside_a_controller_that_runs_it_is_refused(state, sublet, monkeypatch):
    def running(_):
        raise BadInput("state", "a controller runs")

    monkeypatch.setattr("sublet.cli.work.controller_process.refuse_second", running)
    state.mkdir()
    answer = sublet("check", "--for-real")
    assert answer.code != 0
    assert "a controller runs" in answer.err
