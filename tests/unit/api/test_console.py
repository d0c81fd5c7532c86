"""The page without a browser: who is let in and by what, what its files are, what an open page is told."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import re
from pathlib import Path

import pytest

from sublet.api import console
from sublet.api.callers import COOKIE_S, LINK_S, Caller, Callers, needed
from sublet.api.console.routes import files
from sublet.api.feed import Feed
from sublet.api.state import digest
from sublet.cli.main import run
from sublet.errors import Refused
from sublet.runtime.controller_api.tokens import Scope
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import spec_to_json
from tests.rigs.in_memory_api import RUNNING, InMemoryApi, served

FOLDER = Path(console.__file__).parent


class Clock:
    """A wall that stands still until it is moved."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def there(tmp_path):
    with served(tmp_path) as found:
        yield found


def ask(there, method, path, body=b"{}", **headers):
    """One request as a browser sends it: no token."""
    connection = http.client.HTTPConnection(there.client.host, there.client.port, timeout=120)
    sent = {"Content-Type": "application/json"} if method == "POST" else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body if method == "POST" else None, sent)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, response.headers, text


def enter(there):
    """The cookie of a browser that came by a link."""
    _, headers, _ = ask(there, "GET", there.client.post("/v1/sessions")["path"])
    return headers["set-cookie"].partition(";")[0]


def callers(clock, **tokens):
    known = {digest(name): (name, Scope(scope)) for name, scope in tokens.items()}
    return Callers(port=80, tokens=known, wall=clock)


def test_a_link_lets_one_browser_in_once_and_the_cookie_is_for_no_script_and_no_other_site(there):
    path = there.client.post("/v1/sessions")["path"]
    status, headers, _ = ask(there, "GET", path)
    assert (status, headers["location"]) == (303, "/")
    flags = {part.strip().lower() for part in headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    cookie = headers["set-cookie"].partition(";")[0]
    assert there.client.token not in cookie
    assert ask(there, "GET", "/v1/me", Cookie=cookie)[0] == 200
    status, headers, text = ask(there, "GET", path)
    assert (status, headers["set-cookie"]) == (403, None)
    assert b"sublet dashboard" in text


def test_a_link_that_another_site_sends_the_browser_to_is_not_taken(there):
    path = there.client.post("/v1/sessions")["path"]
    assert ask(there, "GET", path, Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(there, "GET", path, Sec_Fetch_Site="none")[0] == 303  # nor is it used up


def test_links_and_cookies_run_out_and_go_with_their_token():
    clock = Clock()
    known = callers(clock, alice="user")
    alice = known.by_token({"authorization": "Bearer alice"})
    late = known.invite(alice)
    clock.now_s += LINK_S + 1
    assert known.enter(late) is None
    headers = {"cookie": f"other=1; sublet_80={known.enter(known.invite(alice))}"}
    assert known.by_cookie(headers) == alice
    clock.now_s += COOKIE_S - 1
    assert known.by_cookie(headers) == alice
    clock.now_s += 2
    assert known.by_cookie(headers) is None
    headers = {"cookie": f"sublet_80={known.enter(known.invite(alice))}"}
    assert known.by_cookie(headers) == alice
    del known.tokens[alice.key]
    assert known.by_cookie(headers) is None


def test_whoever_leaves_is_out(there):
    cookie, port = enter(there), there.client.port
    assert ask(there, "POST", "/v1/sessions/end", Cookie=cookie, Origin=f"http://127.0.0.1:{port}")[0] == 200
    assert ask(there, "GET", "/v1/jobs", Cookie=cookie)[0] == 401


def test_a_cookie_changes_something_only_where_our_own_page_asks(there):
    cookie, port = enter(there), there.client.port
    top_up, ours = ("POST", "/v1/budget/top-up", b'{"usd": 5}'), f"http://127.0.0.1:{port}"
    assert ask(there, *top_up, Cookie=cookie)[0] == 403  # no Origin: no browser of today, and not our page
    assert ask(there, *top_up, Cookie=cookie, Origin="null")[0] == 403
    assert ask(there, *top_up, Cookie=cookie, Origin=f"http://127.0.0.1:{port + 1}")[0] == 403
    assert ask(there, *top_up, Cookie=cookie, Origin=ours, Sec_Fetch_Site="same-site")[0] == 403
    assert ask(there, "GET", "/v1/jobs", Cookie=cookie, Sec_Fetch_Site="same-site")[0] == 403
    assert ask(there, "GET", "/v1/jobs", Cookie=cookie, Host="evil.example")[0] == 403
    assert there.api.purse == 5.0
    assert ask(there, *top_up, Cookie=cookie, Origin=ours, Sec_Fetch_Site="same-origin")[0] == 200
    assert there.api.purse == 10.0


@pytest.mark.parametrize(
    ("method", "path", "least"),
    [
        ("GET", "/v1/jobs", Scope.READ),
        ("GET", "/metrics", Scope.READ),
        ("POST", "/v1/sessions", Scope.READ),
        ("POST", "/v1/jobs", Scope.USER),
        ("POST", "/v1/jobs/x/cancel", Scope.USER),
        ("POST", "/v1/dry-run", Scope.USER),
        ("POST", "/v1/budget", Scope.ADMIN),
        ("POST", "/v1/budget/top-up", Scope.ADMIN),
        ("POST", "/v1/shutdown", Scope.ADMIN),
        ("POST", "/v1/jobsandmore", Scope.ADMIN),
        ("DELETE", "/v1/whatever", Scope.ADMIN),
        ("GET", "/v1/tokens", Scope.ADMIN),
    ],
)
def test_what_a_request_takes(method, path, least):
    assert needed(method, path) is least


def test_each_scope_covers_those_before_it():
    assert [[more.covers(less) for less in Scope] for more in Scope] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_the_page_states_a_strict_policy_and_holds_no_script_or_style_of_its_own(there):
    for path in ("/", *(f"/console/{name}" for name in files())):
        status, headers, _ = ask(there, "GET", path)
        assert status == 200
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "trusted-types 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["referrer-policy"] == "no-referrer"
    page = (FOLDER / "page.html").read_text()
    assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)|https?://", page)


def test_our_own_scripts_write_no_markup_and_ask_nobody_else():
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert not re.search(r"https?://", text), path


@pytest.mark.parametrize(
    "path", ["/v1/budget", "/v1/jobs", "/v1/jobs/j1-x", "/metrics", "/v1/jobs/j1-x/log", "/v1/none"]
)
def test_no_answer_is_kept_or_taken_for_a_page(there, path):
    there.client.post("/v1/jobs", {"job": spec_to_json(job_from_command(["true"], name="x"), secrets=True)})
    (there.api.folder / "j1-x-0.log").write_text("<script>alert(1)</script>\n")
    _, headers, _ = ask(there, "GET", path, Cookie=enter(there))
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_no_other_file_is_given_away(there):
    for path in (
        "routes.py",
        "../routes.py",
        "%2e%2e/state.py",
        "../../../../etc/passwd",
        "vendor",
        "vendor/README.md",
    ):
        assert ask(there, "GET", f"/console/{path}")[0] in (401, 404), path


@pytest.mark.parametrize(
    "folder",
    [FOLDER / "vendor", *(Path(__file__).parents[up] / name for up, name in ((2, "vendor"), (3, "docs/vendor")))],
)
def test_files_of_others_are_as_they_were_published(folder):
    rows = re.findall(r"^\| `(\S+)` \|.*\| `([0-9a-f]{64})` \|$", (folder / "README.md").read_text(), re.MULTILINE)
    there = {path.relative_to(folder).as_posix() for path in folder.glob("*/*") if path.name != "LICENSE"}
    assert {name for name, _ in rows} == there
    for name, known in rows:
        path = folder / name
        assert hashlib.sha256(path.read_bytes()).hexdigest() == known
        assert (path.parent / "LICENSE").exists()


def test_a_job_file_is_checked_and_takes_nothing_from_the_controllers_surroundings(there, tmp_path, monkeypatch):
    monkeypatch.setenv("HUSH", "a secret of the controller")
    text = f"name: pasted\nworkdir: {tmp_path}\nrun: 'true'\n"
    found = there.client.post("/v1/job-files/check", {"text": text})
    assert (found["name"], found["job"]["name"]) == ("pasted", "pasted")
    with pytest.raises(Refused, match="line 2"):
        there.client.post("/v1/job-files/check", {"text": "run: x\nrunn: x\n"})
    with pytest.raises(Refused, match=r"HUSH|secret"):
        there.client.post("/v1/job-files/check", {"text": text + "secrets: {HUSH: null}\n"})


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_verb_prints_a_link_that_works(there, monkeypatch, capsys, form):
    monkeypatch.setenv("SUBLET_STATE", str(there.state.path))
    assert run(["dashboard", "--no-open", *form]) == 0
    shown = capsys.readouterr().out
    address = json.loads(shown)["address"] if form else shown.split()[0]
    assert address.startswith(f"http://127.0.0.1:{there.client.port}/enter?code=")
    assert there.client.token not in shown
    assert ask(there, "GET", address.removeprefix(there.client.address))[0] == 303


# ---------------------------------------------------------------------- what an open page is told


def told(message):
    kind, data = message.decode().split("\n", 1)
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def a_job(api, name):
    job_id = (await api.submit(job_from_command(["true"], name=name)))["job_id"]
    api.change(job_id, **RUNNING)
    return job_id


def test_an_open_page_is_told_all_then_what_changed(tmp_path):
    async def live():
        api = InMemoryApi(tmp_path)
        first = await a_job(api, "one")
        page = Feed(api).listen()
        kind, whole = told(await anext(page))
        assert (kind, [job["id"] for job in whole["jobs"]], whole["events"]) == ("all", [first], [])
        api.change(first, step=41)
        second = await a_job(api, "two")
        kind, news = told(await anext(page))  # at once: what happened, and to whom
        assert kind == "change"
        assert {job["id"]: job["step"] for job in news["jobs"]} == {second: 40}
        assert [event["job_id"] for event in news["events"]] == [second]
        _, look = told(await anext(page))  # then what has changed without a word
        assert {job["id"]: job["step"] for job in look["jobs"]} == {first: 41}
        assert look["events"] == []
        del api.rows[first]
        _, change = told(await anext(page))
        assert (change["jobs"], change["gone"]) == ([], [first])
        await page.aclose()

    asyncio.run(live())


def test_many_pages_are_one_look(tmp_path):
    async def live():
        api = InMemoryApi(tmp_path)
        await a_job(api, "one")
        looks, real = [], api.budget

        async def counted():
            looks.append(1)
            return await real()

        api.budget = counted
        feed = Feed(api)
        pages = [feed.listen() for _ in range(20)]
        for page in pages:
            assert told(await anext(page))[0] == "all"
        heard = [await anext(page) for page in pages]
        assert len(set(heard)) == 1
        assert len(looks) == 2  # one to begin with, one since
        for page in pages:
            await page.aclose()
        assert feed._looking is None  # nobody looks where nobody listens

    asyncio.run(live())


def test_jobs_to_which_something_happened_come_first_and_all_have_their_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.api.feed.MOST_VIEWS", 2)

    async def live():
        api = InMemoryApi(tmp_path)
        ids = [await a_job(api, f"j{number}") for number in range(6)]
        page = Feed(api).listen()
        await anext(page)
        for job_id in ids:
            api.change(job_id, step=99)
        api.tell("Paused", ids[4], "held back")
        seen = []
        for _ in range(4):
            _, change = told(await anext(page))
            seen.append([job["id"] for job in change["jobs"]])
        assert seen[0][0] == ids[4]
        assert max(map(len, seen)) <= 2
        assert sorted(job_id for each in seen for job_id in each) == sorted(ids)
        await page.aclose()

    asyncio.run(live())


def test_a_loss_that_is_no_number_is_not_known_to_a_page(tmp_path):
    async def live():
        api = InMemoryApi(tmp_path)
        job_id = await a_job(api, "nan")
        api.change(job_id, loss=float("nan"))
        page = Feed(api).listen()
        _, whole = told(await anext(page))
        assert whole["jobs"][0]["loss"] is None
        await page.aclose()

    asyncio.run(live())


def test_a_page_that_reads_nothing_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.api.feed.PERIOD_S", 0.001)

    async def live():
        feed = Feed(InMemoryApi(tmp_path))
        page = feed.listen()
        await anext(page)
        while feed._pages:  # noqa: ASYNC110 - the test's own time-out bounds it
            await asyncio.sleep(0.001)
        with pytest.raises(StopAsyncIteration):
            await anext(page)

    asyncio.run(live())


def test_a_caller_does_not_show_its_key():
    assert "key" not in repr(Caller(who="a", scope=Scope.READ, key=b"x"))
