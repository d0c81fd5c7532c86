"""How old prices are is a figure that can be watched."""

from __future__ import annotations

import asyncio

import pytest

from tests.rigs.asgi import ask
from tests.rigs.story import Story

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_the_age_of_prices_is_among_the_metrics(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as api:
            assert (await api.metrics())["price_age_s"] == 0.0
            assert "sublet_price_age_seconds 0.0" in await ask(api, "/metrics")

    asyncio.run(live())
