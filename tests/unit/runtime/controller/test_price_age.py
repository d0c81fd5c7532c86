"""How old prices are is a figure that can be watched."""

from __future__ import annotations

import asyncio

from tests.unit.runtime.controller.test_loop import Story
from tests.unit.runtime.controller.test_worker_logs import asked


def test_the_age_of_prices_is_among_the_metrics(tmp_path):
    story = Story(tmp_path)

    async def live():
        async with story.controller() as desk:
            assert (await desk.metrics())["price_age_s"] == 0.0
            assert "sublet_price_age_seconds 0.0" in await asked(desk, "/metrics")

    asyncio.run(live())
