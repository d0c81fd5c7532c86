"""Who may go on hearing, whose answer is whose, and how much of the server one of them may take."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from dataclasses import replace

import pytest

from sublet.api import guard
from sublet.api.callers import while_it_holds
from sublet.api.console import routes
from sublet.runtime.controller_api.tokens import Scope
from sublet.runtime.jobs.file import job_from_command, job_from_text
from sublet.runtime.jobs.spec import spec_to_json
from sublet_lab.memory_cloud import api_over
from tests.rigs.in_memory_api import served
from tests.rigs.story import Story, a_spec

PATIENCE_S = 120.0


@pytest.fixture
def there(tmp_path):
    with served(tmp_path) as found:
        yield found


def line_of(there):
    return http.client.HTTPConnection(there.client.host, there.client.port, timeout=PATIENCE_S)


def client_of(there, name, scope):
    return replace(there.client, token=there.client.post("/v1/tokens", {"name": name, "scope": scope})["token"])


def headers_of(client, **more):
    return {"Authorization": f"Bearer {client.token}", "Content-Type": "application/json", **more}


def cookie_of(there):
    line = line_of(there)
    line.request("GET", there.client.post("/v1/sessions")["path"])
    cookie = line.getresponse().headers["set-cookie"].partition(";")[0]
    line.close()
    return cookie


def a_job(name="a"):
    return {"job": spec_to_json(job_from_command(["true"], name=name), secrets=True)}


@pytest.mark.parametrize("path", ["/v1/live", "/v1/jobs/j1-a/log?follow=true"])
def test_an_open_page_is_told_nothing_more_once_its_cookie_is_over(there, path):
    there.client.post("/v1/jobs", a_job())
    (there.api.folder / "j1-a-0.log").write_text("a line\n")
    cookie, line, other = cookie_of(there), line_of(there), line_of(there)
    line.request("GET", path, headers={"Cookie": cookie})
    answer = line.getresponse()
    assert answer.readline()
    ours = {"Cookie": cookie, "Origin": there.client.address, "Content-Type": "application/json"}
    other.request("POST", "/v1/sessions/end", "{}", ours)
    assert other.getresponse().status == 200
    answer.read()  # to its end
    assert answer.isclosed()
    for each in (line, other):
        each.close()


def test_a_long_log_that_is_being_read_ends_with_the_token(there):
    size = 64 << 20  # more than lies in buffers on the way
    there.client.post("/v1/jobs", a_job())
    (there.api.folder / "j1-a-0.log").write_bytes(b"x" * size)
    alice, line = client_of(there, "alice", "read"), line_of(there)
    line.request("GET", "/v1/jobs/j1-a/log", headers=headers_of(alice))
    answer = line.getresponse()
    got = len(answer.read(1000))
    there.client.post("/v1/tokens/alice/revoke")
    while part := answer.read1(1 << 20):
        got += len(part)
    assert got < size
    line.close()


def test_what_is_told_on_and_on_is_closed_where_it_may_not_be_heard():
    closed, holds = [], [True, True, False]

    async def told():
        try:
            for number in range(10):
                yield b"%d" % number
        finally:
            closed.append(True)

    async def heard():
        return [message async for message in while_it_holds(told(), lambda: holds.pop(0))]

    assert asyncio.run(heard()) == [b"0", b"1"]
    assert closed == [True]


def test_nobody_gets_the_answer_to_somebody_else_by_their_key(there):
    """Of links above all: that of an admin would be an admin's page."""
    reader, told = client_of(there, "eve", "read"), []
    for client in (there.client, reader, reader):
        line = line_of(there)
        line.request("POST", "/v1/sessions", "{}", headers_of(client, **{"Idempotency-Key": "monday"}))
        told.append(json.loads(line.getresponse().read())["path"])
        line.close()
    assert told[0] != told[1]
    assert told[1] == told[2]


@pytest.mark.usefixtures("virtual_time")
def test_two_users_whose_keys_are_alike_bring_two_jobs(tmp_path):
    async def live():
        story = Story(tmp_path)
        async with story.controller() as api:
            for name in ("ann", "bob"):
                api.tokens.create(name, Scope.USER)
            first = [await api.submit(a_spec(), key="nightly", by=name) for name in ("ann", "bob", "owner")]
        async with story.controller() as api:
            return first, [await api.submit(a_spec(), key="nightly", by=name) for name in ("ann", "bob", "owner")]

    first, again = asyncio.run(live())
    assert [told["job_id"] for told in first] == ["j-1", "j-2", "j-3"]
    assert [told["job_id"] for told in again] == ["j-1", "j-2", "j-3"]


def test_one_who_may_look_cannot_take_all_lines_from_the_others(there, monkeypatch):
    monkeypatch.setattr(guard, "MOST_AT_ONCE", 2)
    reader, lines = client_of(there, "eve", "read"), []

    def opened(client):
        lines.append(line_of(there))
        lines[-1].request("GET", "/v1/live", headers=headers_of(client))
        return lines[-1].getresponse().status

    assert [opened(reader) for _ in range(3)] == [200, 200, 429]
    assert [opened(there.client) for _ in range(3)] == [200, 200, 200]
    assert opened(client_of(there, "ann", "read")) == 200
    lines[0].close()
    while opened(reader) != 200:  # it is free when the server has heard of the end
        lines.pop().close()
    for line in lines:
        line.close()


@pytest.mark.usefixtures("virtual_time")
def test_a_top_up_that_comes_amid_a_start_is_added_to_what_was_left(tmp_path):
    """Until the controller has read what was, its purse is none that anybody set."""
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            await api.set_budget(purse_usd=10.0)
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            asked = asyncio.create_task(api.top_up(5.0))
            await asyncio.sleep(0)
            running = asyncio.create_task(api.run())
            found = await asked
            await api.shutdown()
            await running
            return found["purse_usd"]

    assert asyncio.run(live()) == 15.0


def test_a_long_job_file_is_read_aside_from_the_loop(there, monkeypatch):
    """Nobody waits for it but whoever asked: it takes a second, in which nodes could be noticed."""
    begun, go, done = threading.Event(), threading.Event(), []

    def read(text, **facts):
        begun.set()
        assert go.wait(PATIENCE_S)
        return job_from_text(text, **facts)

    def check():
        done.append(there.client.post("/v1/job-files/check", {"text": "name: long\nrun: 'true'\n"})["name"])

    monkeypatch.setattr(routes, "job_from_text", read)
    asking = threading.Thread(target=check)
    asking.start()
    assert begun.wait(PATIENCE_S)
    assert there.client.get("/v1/me")["who"] == "owner"  # answered, while that is not
    assert done == []
    go.set()
    asking.join(PATIENCE_S)
    assert done == ["long"]


def test_metrics_show_a_user_no_purses_but_their_own(there):
    there.client.post("/v1/budgets", {"level": "team", "name": "rich", "amount_usd": 9.0})
    there.client.post("/v1/tokens", {"name": "bob", "scope": "user", "team": "rich"})
    ann = client_of(there, "ann", "user")
    for client, seen in ((there.client, True), (ann, False)):
        text = b"".join(client.stream("/metrics")).decode()
        assert ('name="rich"' in text) is seen
        assert 'level="org"' in text
