"""`sublet check` over a list of machines that lies anywhere."""

from __future__ import annotations

import pytest

from sublet.cli.verbs import check as verb
from sublet.errors import InvalidValue
from sublet.runtime.providers.ssh.config import Host
from sublet.runtime.providers.ssh.hostline import _reason


def test_the_list_that_is_named_is_the_one_that_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_STATE", str(tmp_path / "state"))
    (finding,) = verb._check_ssh(insist=True, hosts=tmp_path / "mine.toml")
    assert finding.ok is False
    assert str(tmp_path / "mine.toml") in finding.text


def test_machines_are_of_ssh_alone(tmp_path):
    with pytest.raises(InvalidValue, match="--hosts"):
        verb.check(None, provider="aws", hosts=tmp_path / "mine.toml")


def test_a_key_file_that_is_not_there_is_named_with_its_field():
    told = _reason(
        FileNotFoundError(2, "No such file or directory", "/root/.ssh/lab"), Host(name="b", key="~/.ssh/lab")
    )
    assert "hosts.key" in told
    assert "~/.ssh/lab" in told
