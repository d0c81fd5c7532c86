"""The history says whose wish something was, and of nothing else that it was anybody's."""

from __future__ import annotations

import asyncio

import pytest

from tests.rigs.asgi import serving
from tests.rigs.story import a_spec, phase, trained

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
