"""What open pages are told, by a real controller over a cloud in memory: all of it, and never silence for ever."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from sublet import plugins
from sublet.api import feed as feeding
from sublet.api.feed import BEHIND, Feed
from sublet.runtime.clock import Clock
from sublet_lab.memory_cloud import MemoryCloud, api_over
from tests.rigs.story import LIMITS, OFFERS, a_spec

PATIENCE_S = 120.0
PERIOD_S, GLANCES = feeding.PERIOD_S, feeding.GLANCES  # as they are, before tests are quick


class Failing:
    """An API of which the question for events fails, once it is told to."""

    def __init__(self, api):
        self._api, self.fails = api, False

    def __getattr__(self, name):
        return getattr(self._api, name)

    async def events(self, **asked):
        if self.fails:
            raise KeyError("a fault of ours")
        return await self._api.events(**asked)


@asynccontextmanager
async def controller(folder):
    with api_over(
        MemoryCloud(OFFERS, Clock(speedup=60.0)),
        folder,
        plugins.load("sublet.policies", "price")(),
        limits=LIMITS,
    ) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        yield api
        await api.shutdown()
        await running


async def said(page):
    message = (await asyncio.wait_for(anext(page), PATIENCE_S)).decode()
    kind, data = message.strip().split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def drained(page):
    """All that is left of it, to its end."""
    while await said(page):
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(feeding, "PERIOD_S", 0.01)


def test_a_page_hears_all_there_is_and_then_what_changes(tmp_path):
    async def live():
        async with controller(tmp_path) as api:
            feed = Feed(api)
            page = feed.listen()
            kind, told = await said(page)
            assert (kind, told["jobs"], told["stopping"]) == ("all", [], False)
            kind, told = await said(page)
            assert kind == "change"
            await page.aclose()
            later = feed.listen()  # nobody listened in between: it is begun anew
            assert (await said(later))[0] == "all"
            await later.aclose()

    asyncio.run(live())


def test_where_a_look_fails_pages_end_and_the_next_one_begins_anew(tmp_path, caplog):
    async def live():
        async with controller(tmp_path) as api:
            failing = Failing(api)
            feed = Feed(failing)
            page = feed.listen()
            assert (await said(page))[0] == "all"
            failing.fails = True
            with pytest.raises(StopAsyncIteration):
                await drained(page)
            failing.fails = False
            again = feed.listen()
            assert (await said(again))[0] == "all"
            assert (await said(again))[0] == "change"
            await again.aclose()

    asyncio.run(live())
    assert "open pages are told nothing more" in caplog.text


def test_a_page_that_does_not_read_is_let_go_and_holds_nobody_up(tmp_path):
    async def live():
        async with controller(tmp_path) as api:
            feed = Feed(api)
            slow, quick = feed.listen(), feed.listen()
            assert (await said(slow))[0] == "all"
            assert (await said(quick))[0] == "all"
            for _ in range(2 * BEHIND):
                assert (await said(quick))[0] == "change"
            with pytest.raises(StopAsyncIteration):
                await drained(slow)
            await quick.aclose()

    asyncio.run(live())


def test_what_happens_is_told_before_the_next_look(tmp_path, monkeypatch):
    """A look would come in an hour: the event comes, and the job that it is about, and nothing of nodes."""

    async def live():
        async with controller(tmp_path) as api:
            feed = Feed(api)
            page = feed.listen()
            await said(page)
            monkeypatch.setattr(feeding, "GLANCES", 10**6)
            await said(page)  # the look that was under way
            job_id = (await api.submit(a_spec(name="told")))["job_id"]
            while not (told := (await said(page))[1])["events"]:
                pass
            assert next(event["kind"] for event in told["events"]) == "JobSubmitted"
            assert [job["id"] for job in told["jobs"]] == [job_id]
            assert told["nodes"] == []
            await page.aclose()

    asyncio.run(live())


def test_what_happens_is_looked_for_ten_times_a_second():
    """So that a notice is on its way to pages after a tenth of the second that it may take."""
    assert PERIOD_S / GLANCES <= 0.1
    assert PERIOD_S <= 0.5


def test_a_job_that_a_glance_saw_first_is_looked_at_again(tmp_path):
    async def live():
        async with controller(tmp_path) as api:
            feed = Feed(api)
            await feed._look(most=50)
            job_id = (await api.submit(a_spec(name="seen")))["job_id"]
            glanced = await feed._glance()
            assert [job["id"] for job in glanced["jobs"]] == [job_id]
            feed._jobs[job_id] = {}  # whatever it is now, it is another than then
            assert [job["id"] for job in (await feed._look(most=50))["jobs"]] == [job_id]

    asyncio.run(live())


def test_a_change_holds_what_is_otherwise_and_what_a_page_opens_with_holds_all(tmp_path):
    async def live():
        async with controller(tmp_path) as api:
            feed = Feed(api)
            page = feed.listen()
            await said(page)
            job_id = (await api.submit(a_spec(name="whole")))["job_id"]
            known, node_ids = {}, set()
            while known.get("phase") != "running" or known["step"] < 20:
                kind, told = await said(page)
                assert kind == "change"
                for row in (row for row in told["jobs"] if row["id"] == job_id):
                    assert not known or all(known[name] != value for name, value in row.items() if name != "id")
                    known |= row
                node_ids = (node_ids | {row["id"] for row in told["nodes"]}) - set(told.get("gone_nodes", ()))
            assert known.keys() == (await api.job(job_id)).keys()
            assert node_ids == {node["id"] for node in await api.nodes()}
            (late,) = (await said(feed.listen()))[1]["jobs"]
            assert late.keys() == known.keys()
            await page.aclose()

    asyncio.run(live())
