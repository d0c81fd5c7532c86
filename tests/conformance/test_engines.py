"""Every registered engine passes the suite for engines, on a rig of its own; what is ours is also seen from inside."""

from __future__ import annotations

import asyncio

import pytest

from sublet import plugins
from sublet.runtime.agent import dialing
from sublet.testing.conformance.engines import EngineSuite, opened
from sublet.wire.lines import to_line
from sublet.wire.messages import Hello, WorkerUp
from tests.rigs.clouds import RIGS

NAMES = plugins.names("sublet.engines")


def suite_of(name):
    class Registered(EngineSuite):
        registered_as = name

        def make_rig(self):
            return RIGS[name]()

    return Registered


for name in NAMES:
    globals()[f"Test_{name}"] = suite_of(name)


@pytest.fixture(params=NAMES)
def rig(request):
    here = RIGS[request.param]()
    yield here
    assert here.clean_up() == []


def test_there_are_engines_and_each_can_be_tested():
    assert "local" in NAMES
    assert set(NAMES) <= set(RIGS)


def test_of_a_stranger_that_is_hung_up_on_no_further_line_is_read(rig, monkeypatch):
    read, from_line = [], dialing.from_line
    monkeypatch.setattr(dialing, "from_line", lambda line: read.append(line) or from_line(line))

    async def scene():
        async with opened(rig):
            await asyncio.to_thread(rig.stranger, b"{\n" * 30_000)
            assert read == [b"{"]

    asyncio.run(scene())


def test_a_token_that_no_text_can_be_is_refused_as_any_other(rig, caplog):
    async def scene():
        async with opened(rig) as (engine, _):
            engine.expect("n", "token")
            no_text = "\ud800"
            assert not engine._knows("n", no_text)
            hello = to_line(Hello(node_id="n", token=no_text, pid=1))
            await asyncio.to_thread(rig.stranger, hello)

    asyncio.run(scene())
    assert [record for record in caplog.records if record.exc_info] == []


def test_of_strangers_few_are_kept_in_mind(rig):
    async def scene():
        async with opened(rig) as (engine, _):
            lines = [await rig.connect() for _ in range(200)]
            await asyncio.sleep(0.05)
            assert len(engine._strangers) <= 64
            for _, out in lines:
                out.close()

    asyncio.run(scene())


def test_of_what_a_failing_hearer_was_told_the_log_says_a_little(rig, caplog):
    async def scene():
        async with opened(rig) as (engine, _):

            def fails(node_id, message):
                raise RuntimeError("a fault of the controller's")

            engine._hear = fails
            for number in range(200):
                engine._pass_up("n", WorkerUp(worker_id=f"x{number}", pid=1))

    asyncio.run(scene())
    assert 1 <= len([record for record in caplog.records if "could not be taken" in record.getMessage()]) <= 20
