"""What `sublet gc` keeps of anchors: an instance of EC2 is described, none is asked for."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from sublet.cli.main import assembled
from sublet.cli.verbs import gc as verb
from sublet.runtime.controller_host.instance import anchor_server
from sublet.runtime.controller_host.record import Home, HostRecord, folder_of, keep
from sublet.runtime.providers.aws.build import server_id_from
from sublet.runtime.providers.aws.instances import Instance
from sublet.runtime.store import Store

RECORD = HostRecord(
    region="us-east-1",
    token="",
    nonce="",
    expires_unix=0,
    kind="t3.small",
    user="u",
    python="p",
)


class Account:
    """A state directory, and instances that nobody has renewed for an hour."""

    def __init__(self, state):
        self.state, self.found, self.ended = state, [], []
        store = Store(state / "log.sqlite")
        self.server = server_id_from(store)
        store.close()
        (state / "aws.toml").write_text('regions=["us-east-1"]\ninstance_types=["g4dn.xlarge"]\nimage="ami-1"\n')

    def has(self, name, state, server):
        facts = {"node_id": "anchor", "offer_id": "", "token_tag": "", "kind": "t3.small", "launched_unix": 0.0}
        expired = time.time() - 3600.0
        self.found.append(
            Instance(id=name, region="us-east-1", state=state, server=server, expires_unix=expired, **facts)
        )

    def gc(self):
        """What it calls an orphan; it was ended."""
        answer = CliRunner().invoke(assembled(), ["gc", "-y", "-o", "json"])
        assert answer.exit_code == 0, answer.output
        found = {row["what"]: row for row in json.loads(answer.output)["found"]}
        assert sorted(self.ended) == sorted(name for name, row in found.items() if row["orphan"])
        self.why = {name: row["why"] for name, row in found.items()}
        return self.ended


@pytest.fixture
def account(tmp_path, monkeypatch):
    account = Account(tmp_path)

    async def listed(endpoint_url, regions):
        return account.found

    async def ended(endpoint_url, instance):
        account.ended.append(instance.id)

    monkeypatch.setenv("SUBLET_STATE", str(tmp_path))
    monkeypatch.setattr(verb, "_instances", listed)
    monkeypatch.setattr(verb, "_terminate", ended)
    return account


@pytest.mark.parametrize("state", ["running", "stopped"])
@pytest.mark.parametrize("home", list(Home))
def test_the_anchor_that_this_directory_knows_is_never_an_orphan(account, state, home):
    keep(account.state, replace(RECORD, instance="i-ours", home=home))
    account.has("i-ours", state, anchor_server(account.server))
    account.has("i-old", "running", anchor_server(account.server))  # of the same controller, made from a copy
    assert account.gc() == ["i-old"]
    assert "sublet down" in account.why["i-ours"]


@pytest.mark.parametrize("text", ["{", json.dumps({})])
def test_where_the_record_cannot_be_read_every_anchor_of_this_controller_stays(account, text):
    folder_of(account.state).mkdir()
    (folder_of(account.state) / "record.json").write_text(text)
    account.has("i-ours", "running", anchor_server(account.server))
    account.has("i-other", "running", anchor_server("other"))
    assert account.gc() == ["i-other"]


@pytest.mark.parametrize("state", ["stopping", "stopped"])
def test_an_anchor_that_is_off_cannot_renew_and_stays_whosever_it_is(account, state):
    account.has("i-off", state, anchor_server("other"))
    account.has("i-on", "running", anchor_server("other"))
    account.has("i-node", state, "other")
    assert account.gc() == ["i-on", "i-node"]
