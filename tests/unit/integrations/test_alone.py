"""A framework sees one process: ranks of the start are hidden from it, and a width that cannot change is refused."""

from __future__ import annotations

import os

import pytest

from sublet.errors import InvalidValue
from sublet.integrations.checks import RANKS, look_alone


@pytest.mark.parametrize("given", [{"SUBLET_CONTROL_FD": "3", "WORLD_SIZE": "2"}, {"WORLD_SIZE": "1"}, {}])
def test_ranks_of_the_start_are_hidden(given, monkeypatch):
    monkeypatch.delenv("SUBLET_CONTROL_FD", raising=False)
    for name, value in (dict.fromkeys(RANKS, "0") | {"WORLD_SIZE": "1"} | given).items():
        monkeypatch.setenv(name, value)
    look_alone()
    assert not set(RANKS) & set(os.environ)


def test_several_processes_of_torchrun_are_refused(monkeypatch):
    monkeypatch.delenv("SUBLET_CONTROL_FD", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InvalidValue, match="WORLD_SIZE"):
        look_alone()
    assert os.environ["RANK"] == "1"
