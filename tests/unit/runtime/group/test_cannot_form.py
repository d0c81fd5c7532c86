"""A job whose workers never meet says so where people look."""

from __future__ import annotations

import asyncio

import pytest

from sublet.runtime.group import states
from tests.rigs.story import Story, a_spec, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_a_job_that_cannot_form_says_so_and_how_often_until_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "FORM_S", 0.1)
    story = Story(tmp_path)
    regroup, blocked = story.cloud._regroup, True

    def answered(worker, order):
        if not blocked:
            regroup(worker, order)

    story.cloud._regroup = answered

    async def live():
        nonlocal blocked
        async with story.controller() as api:
            await api.submit(a_spec(max_workers=2))

            async def told():
                view = await api.job("j-1")
                return view if "its last 2 starts" in view["reason"] else None

            view = await until(told, "it never said why")
            assert view["phase"] == "starting"
            assert "does not train: each of its last 2 starts ended early" in view["reason"]
            assert "the group did not form within" in view["reason"]
            blocked = False
            monkeypatch.setattr(states, "FORM_S", 1.0)  # the order that nobody answered is given again
            await phase(api, "j-1", "running")
            assert "does not train" not in (await api.job("j-1"))["reason"]

    asyncio.run(live())
