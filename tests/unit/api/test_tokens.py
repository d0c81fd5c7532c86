"""Keys for others: what each scope may, that a revoked one opens nothing, and that none can be read anywhere."""

from __future__ import annotations

import asyncio
import http.client
import json
from dataclasses import replace

import pytest

from sublet.cli.main import run
from sublet.errors import InvalidValue
from sublet.runtime.controller_api.tokens import Scope
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import spec_to_json
from tests.rigs.in_memory_api import served, status
from tests.rigs.story import Story


@pytest.fixture
def there(tmp_path):
    with served(tmp_path) as found:
        yield found


def client_of(there, name, scope):
    return replace(there.client, token=there.client.post("/v1/tokens", {"name": name, "scope": scope})["token"])


def a_job():
    return {"job": spec_to_json(job_from_command(["true"], name="a"), secrets=True)}


def test_each_scope_may_what_it_says_and_no_more(there):
    found = {}
    for scope in Scope:
        client = client_of(there, f"{scope}-one", scope)
        found[scope] = [
            status(lambda client=client: client.get("/v1/jobs")),
            status(lambda client=client: client.post("/v1/jobs", a_job())),
            status(lambda client=client: client.post("/v1/budget/top-up", {"usd": 1.0})),
            status(lambda client=client: client.get("/v1/tokens")),
            status(lambda client=client, scope=scope: client.post("/v1/tokens", {"name": f"by-{scope}"})),
        ]
    assert found == {
        Scope.READ: [200, 403, 403, 403, 403],
        Scope.USER: [200, 200, 403, 403, 403],
        Scope.ADMIN: [200, 200, 200, 200, 200],
    }
    submitted = [event["by"] for event in there.api.history if event["kind"] == "JobSubmitted"]
    assert submitted == ["user-one", "admin-one"]


def test_a_token_that_is_revoked_opens_nothing_nor_does_a_page_that_it_opened(there):
    alice = client_of(there, "alice", "user")
    assert status(lambda: alice.get("/v1/jobs")) == 200
    link = alice.post("/v1/sessions")["path"]
    there.client.post("/v1/tokens/alice/revoke")
    assert status(lambda: alice.get("/v1/jobs")) == 401
    assert status(lambda: there.client.post("/v1/tokens/alice/revoke")) == 422
    from http.client import HTTPConnection

    connection = HTTPConnection(there.client.host, there.client.port, timeout=120)
    connection.request("GET", link)
    answer = connection.getresponse()
    answer.read()
    cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
    connection.request("GET", "/v1/jobs", headers={"Cookie": cookie})
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize("path", ["/v1/live", "/v1/jobs/j1-a/log?follow=true"])
def test_what_is_told_on_and_on_ends_with_the_token_that_asked_for_it(there, path):
    there.client.post("/v1/jobs", a_job())
    (there.api.folder / "j1-a-0.log").write_text("a line\n")
    alice, bob = client_of(there, "alice", "read"), client_of(there, "bob", "read")
    lines = [http.client.HTTPConnection(alice.host, alice.port, timeout=120) for _ in range(2)]
    answers = []
    for line, client in zip(lines, (alice, bob), strict=True):
        line.request("GET", path, headers={"Authorization": f"Bearer {client.token}"})
        answers.append(line.getresponse())
        assert answers[-1].readline()
    there.client.post("/v1/tokens/alice/revoke")
    answers[0].read()  # to its end
    assert answers[0].isclosed()
    assert not answers[1].isclosed()
    for line in lines:
        line.close()


@pytest.mark.parametrize("name", ["owner", "reader", "", "a b", "../x", "x" * 41, "<b>"])
def test_a_name_that_is_none_or_is_taken_is_refused(there, name):
    assert status(lambda: there.client.post("/v1/tokens", {"name": name})) == 422
    client_of(there, "twice", "read")
    assert status(lambda: there.client.post("/v1/tokens", {"name": "twice"})) == 422
    assert status(lambda: there.client.post("/v1/tokens", {"name": "odd", "scope": "root"})) == 422


@pytest.mark.usefixtures("virtual_time")
def test_tokens_outlive_the_controller_and_the_store_has_digests_alone(tmp_path):
    async def live():
        story = Story(tmp_path)
        async with story.controller() as api:
            token = api.tokens.create("alice", Scope.USER, by="owner")
            api.tokens.create("bob", Scope.READ)
            api.tokens.revoke("bob", by="owner")
            with pytest.raises(InvalidValue):
                api.tokens.revoke("bob")
        async with story.controller() as api:
            (known,) = api.tokens.digests().values()
            told = [(event["kind"], event["by"]) for event in await api.events() if event["kind"].startswith("Token")]
            return token, known, told

    token, known, told = asyncio.run(live())
    assert known == ("alice", Scope.USER)
    assert told == [("TokenMade", "owner"), ("TokenMade", ""), ("TokenRevoked", "owner")]
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_the_verb_makes_lists_and_revokes(there, monkeypatch, capsys):
    monkeypatch.setenv("SUBLET_STATE", str(there.state.path))
    assert run(["token", "create", "alice", "--scope", "user"]) == 0
    token = capsys.readouterr().out.strip()
    assert status(lambda: replace(there.client, token=token).get("/v1/jobs")) == 200
    assert run(["token", "list", "--json"]) == 0
    listed = capsys.readouterr().out
    assert [(each["name"], each["scope"]) for each in json.loads(listed)["tokens"]] == [("alice", "user")]
    assert token not in listed
    assert run(["token", "list"]) == 0
    assert capsys.readouterr().out.split()[-5:-1] == ["alice", "user", "alice", "-"]
    assert run(["token", "revoke", "alice"]) == 0
    assert status(lambda: replace(there.client, token=token).get("/v1/jobs")) == 401
