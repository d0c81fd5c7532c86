"""The page over a history that is over, of `sublet simulate --serve` and `sublet replay --serve`: to look at alone."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from tests.rigs.story import Story, a_spec, until

SIMULATE = ("simulate", "pollux-1", "--policy", "equal", "--gpus", "16", "--jobs", "4", "--quiet", "--serve")


@contextmanager
def shown(*command):
    """(host and port, cookie) of whoever followed the link that the command prints; it ends with 0 when interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sublet", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        link = next(word for line in process.stdout for word in line.split() if word.startswith("http://127.0.0.1"))
        parts = urlsplit(link)
        status, headers, _ = ask(parts.netloc, "", f"{parts.path}?{parts.query}")
        assert status == 303
        yield parts.netloc, headers["set-cookie"].partition(";")[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(place, cookie, path, method="GET"):
    connection = HTTPConnection(place, timeout=120)
    headers = {"Cookie": cookie, "Content-Type": "application/json", "Origin": f"http://{place}"}
    connection.request(method, path, "{}" if method == "POST" else None, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


def test_a_simulation_is_looked_at_in_the_page():
    with shown(*SIMULATE) as (place, cookie):
        me = json.loads(ask(place, cookie, "/v1/me")[2])
        assert (me["live"], me["scope"]) == (False, "read")
        events = json.loads(ask(place, cookie, "/v1/events?limit=10000")[2])["events"]
        kinds = [event["kind"] for event in events]
        assert kinds.count("JobFinished") == 4
        assert max(event["workers"] or 0 for event in events) > 0
        assert [event["usd_total"] for event in events] == sorted(event["usd_total"] for event in events)
        assert json.loads(ask(place, cookie, "/v1/prices")[2])["prices"]
        assert b"<html" in ask(place, cookie, "/")[2]
        for path in ("/v1/jobs", "/v1/budget/top-up", "/v1/shutdown", "/v1/what-if"):
            assert ask(place, cookie, path, "POST")[0] == 403


def test_a_run_whose_controller_has_ended_is_looked_at_in_the_page(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            job_id = (await api.submit(a_spec(name="over")))["job_id"]
            await until(lambda: _trains(api, job_id), "it trains")

    async def _trains(api, job_id):
        return (await api.job(job_id))["phase"] == "running"

    asyncio.run(live())
    with shown("replay", str(story.folder), "--serve") as (place, cookie):
        events = json.loads(ask(place, cookie, "/v1/events")[2])["events"]
        assert "JobSubmitted" in [event["kind"] for event in events]
