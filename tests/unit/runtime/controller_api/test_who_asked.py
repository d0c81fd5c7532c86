"""The history says whose wish something was, and of nothing else that it was anybody's."""

from __future__ import annotations

import asyncio

import pytest

from sublet_lab.memory_cloud import api_over
from tests.rigs.asgi import serving
from tests.rigs.story import Story, a_spec, phase, trained

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_what_a_user_asked_for_is_theirs_and_what_the_controller_did_is_nobodys(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            api = server.api
            await api.submit(a_spec(purse_usd=5.0), by="alice")
            await trained(api, "j-1", 1)
            await api.scale("j-1", low=1, high=1, by="bob")
            await api.top_up_job("j-1", 1.0, by="alice")
            await server.post("/v1/jobs/j/pause", {})
            await phase(api, "j-1", "paused")
            await api.resume("j-1", by="bob")
            await trained(api, "j-1", 5)
            await server.post("/v1/budget", {"purse_usd": 50.0})
            await api.cancel("j-1", now=True, by="carol")
            await phase(api, "j-1", "cancelled")
            return await api.events()

    events = asyncio.run(live())
    by = {}
    for event in events:
        by.setdefault(event["kind"], set()).add(event["by"])
    assert by["JobSubmitted"] == {"alice"}
    assert by["Scaled"] == by["Resumed"] == {"bob"}
    assert by["Budget"] == {"alice"}
    assert by["Paused"] == {"owner"}  # by the token that it came with
    assert "owner" in by["BudgetChanged"]
    assert by["JobCancelled"] == {"carol"}
    assert by["Plan"] == by["JobStarted"] == by["NodeReady"] == {""}


@pytest.mark.parametrize(("end_jobs", "told"), [(True, "so are all jobs"), (False, "jobs go on")])
def test_the_history_says_who_ended_the_controller_and_what_becomes_of_jobs(tmp_path, end_jobs, told):
    async def live():
        story = Story(tmp_path)
        with api_over(story.cloud, story.folder, story.policy, limits=story.limits) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.shutdown(end_jobs=end_jobs, by="carol")
            await running
        async with story.controller() as api:
            return [(event["by"], event["text"]) for event in await api.events() if event["kind"] == "Shutdown"]

    ((by, text),) = asyncio.run(live())
    assert by == "carol"
    assert told in text
