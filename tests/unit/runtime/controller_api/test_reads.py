"""Whoever asks for one job gets one: nothing is looked at for it that it does not have."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sublet.errors import NoSuchJob
from sublet.runtime.controller.host import Paces
from sublet.runtime.controller.memory.table import JobTable
from sublet.runtime.controller_api import api as controller_api
from sublet_lab.memory_cloud import Training
from tests.rigs.asgi import serving
from tests.rigs.story import Story, a_spec, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


@pytest.fixture
def views(monkeypatch):
    """Of which jobs the API made a view."""
    seen, real = [], controller_api.job_view

    def counted(record, sources):
        seen.append(record.id)
        return real(record, sources)

    monkeypatch.setattr(controller_api, "job_view", counted)
    return seen


@pytest.mark.parametrize("ref", ["c-1", "c"])
def test_one_job_is_read_without_a_look_at_the_others(tmp_path, views, ref):
    async def live():
        async with serving(tmp_path) as server:
            for name in "abcd":
                await server.api.submit(a_spec(name=name))
            await phase(server.api, "c-1", "running")
            views.clear()
            booked, bill = [], server.api._controller.bill
            real = type(bill).settle_job
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    type(bill),
                    "settle_job",
                    lambda self, job_id, *a, **k: booked.append(job_id) or real(self, job_id, *a, **k),
                )
                status, found = await server.get(f"/v1/jobs/{ref}")
            return status, found["id"], booked

    status, job_id, booked = asyncio.run(live())
    assert (status, job_id) == (200, "c-1")
    assert views == ["c-1"]
    assert set(booked) == {"c-1"}


def test_one_job_costs_the_same_alone_as_in_the_list(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            for name in "ab":
                await server.api.submit(a_spec(name=name))
            await phase(server.api, "b-1", "running")
            return await server.api.job("b-1"), (await server.api.jobs())[1], await server.api.cost("b-1")

    alone, listed, cost = asyncio.run(live())
    assert alone["usd_total"] == listed["usd_total"] == cost["usd_total"] > 0


def test_a_name_means_the_job_that_lives_and_else_the_last(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            api = server.api
            for _ in range(3):
                await api.submit(a_spec(name="twin"))
            for job_id in ("twin-1", "twin-3"):
                await api.cancel(job_id, now=True)
                await phase(api, job_id, "cancelled")
            alive = api.directory.find("twin")
            await api.cancel("twin-2", now=True)
            await phase(api, "twin-2", "cancelled")
            return alive, api.directory.find("twin"), api.directory.find("twin-2")

    assert asyncio.run(live()) == ("twin-2", "twin-3", "twin-2")


def test_a_name_that_several_have_and_one_that_none_has_are_refused(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            for name in ("twin", "twin", "tower"):
                await server.api.submit(a_spec(name=name))
            refused = []
            for ref in ("twin", "tw", "t", "", "nobody"):
                with pytest.raises(NoSuchJob) as error:
                    server.api.directory.find(ref)
                refused.append(len(error.value.several))
            return refused, server.api.directory.find("tow")

    assert asyncio.run(live()) == ([2, 2, 3, 0, 0], "tower-1")


def test_the_names_follow_jobs_onto_the_shelf_and_back(tmp_path):
    async def live():
        story = Story(tmp_path, paces=Paces(jobs_kept=1, jobs_shelved=1))
        async with story.controller() as api:
            table = api._controller.table
            for number in (1, 2, 3):
                story.cloud.jobs[f"j-{number}"] = Training(steps=10)
                await api.submit(a_spec(max_workers=1))
                await phase(api, f"j-{number}", "finished")
            await until(lambda: asyncio.sleep(0, not table.live), "one of them lives on")
            api._controller.memory.write()
            assert list(table.named["j"]) == list(table.records) == ["j-3"]
            assert api.directory.find("j-1") == "j-1"  # by its whole id, from the shelf
            assert sorted(table.named["j"]) == ["j-1", "j-3"]
            return api.directory.find("j"), (await api.submit(a_spec()))["job_id"]

    assert asyncio.run(live()) == ("j-1", "j-4")  # the one that came to hand last


def test_a_name_is_forgotten_with_its_last_job():
    table = JobTable()
    record = SimpleNamespace(id="a-1", spec=a_spec(name="a"))
    table.keep(record)
    assert table.named == {"a": {"a-1": None}}
    table.put_away(record)
    assert table.named == {}
