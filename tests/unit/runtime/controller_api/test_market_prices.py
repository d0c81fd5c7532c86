"""Prices over time: what is told is what the ledger charges."""

from __future__ import annotations

import asyncio

import pytest

from tests.rigs.asgi import serving
from tests.rigs.story import a_spec, phase, until

pytestmark = pytest.mark.usefixtures("virtual_time")


def test_a_price_that_changed_is_told_with_when_it_did(tmp_path):
    async def live():
        async with serving(tmp_path) as server:
            await server.api.submit(a_spec())
            await phase(server.api, "j-1", "running")
            before_s = server.api._controller.now_s()
            server.cloud.reprice("spot", 0.75)

            async def changed():
                _, told = await server.get("/v1/prices")
                found = {each["offer_id"]: each["changes"] for each in told["prices"]}
                return found if len(found["spot"]) > 1 else None

            found = await until(changed, "no price changed")
            return found, before_s, server.api._controller.now_s()

    found, before_s, after_s = asyncio.run(live())
    assert [usd for _, usd in found["spot"]] == [0.5, 0.75]
    assert [usd for _, usd in found["on-demand"]] == [1.5]
    assert 0.0 == found["spot"][0][0] < before_s - 1e-6 <= found["spot"][1][0] <= after_s
