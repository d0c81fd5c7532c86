"""Stewards that an earlier controller left, and that do not answer the next one at once: they hold what they held."""

from __future__ import annotations

import asyncio

import pytest

from sublet.errors import NoAnswer, StewardGone
from sublet.runtime.providers.ray.cluster import RayClaim, Stewards

HELD = {"node_id": "n1", "offer_id": "o", "token": "t", "began_s": 0.0, "pid": 7}
ASKED_FOR = RayClaim(node_id="n2", offer_id="o", token="u", ray_node="r", began_s=0.0)  # noqa: S106


class OneSteward:
    """A cluster in which one was found; it answers as it is told to."""

    def __init__(self):
        self.error, self.ended = None, []

    def stewards(self, namespace):
        return {"r": "actor"}

    def look(self):
        return [type("Node", (), {"id": "r"})()]

    async def call(self, actor, verb, *facts, wait_s=30.0):
        if self.error is not None:
            raise self.error
        if verb == "end":
            self.ended.append(facts[0])
        return {"ready": {"host": "h", "port": 7}, "held": [HELD]}.get(verb)


async def silent_at_first(tmp_path):
    cluster = OneSteward()
    stewards = Stewards(cluster, "space", (), 1.0)
    cluster.error = NoAnswer("ready", "a time-out")
    await stewards.open()
    assert await stewards.held_on("r") is None
    return cluster, stewards


def test_what_it_holds_is_given_back_once_it_answers(tmp_path):
    async def scene():
        cluster, stewards = await silent_at_first(tmp_path)
        with pytest.raises(NoAnswer):
            await stewards.end("r", "n1")
        cluster.error = None
        assert [claim.node_id for claim in await stewards.held_on("r")] == ["n1"]
        assert await stewards.end("r", "n1")
        assert cluster.ended == ["n1"]

    asyncio.run(scene())


def test_a_rent_that_it_does_not_answer_does_not_make_it_forgotten(tmp_path):
    async def scene():
        cluster, stewards = await silent_at_first(tmp_path)
        with pytest.raises(NoAnswer):
            await stewards.begin(ASKED_FOR, {}, {})
        assert stewards.places == ("r",)
        cluster.error = None
        assert await stewards.end("r", "n1")
        assert cluster.ended == ["n1"], "nobody may believe that nothing was there"

    asyncio.run(scene())


def test_one_that_is_gone_has_left_nothing(tmp_path):
    async def scene():
        cluster, stewards = await silent_at_first(tmp_path)
        cluster.error = StewardGone("ready", "the node is gone")
        assert await stewards.held_on("r") == []
        assert not stewards.places
        assert not await stewards.end("r", "n1")

    asyncio.run(scene())
