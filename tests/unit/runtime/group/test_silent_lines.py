"""A network that drops everything and tells nobody: the agent dials again, and the node is not lost."""

from __future__ import annotations

import asyncio
import socket

import pytest

from sublet.runtime.engines.local import LocalEngine
from sublet.testing.rigs import Ears, LocalRig, until
from sublet.wire.messages import Dismiss, EndWorker, Hello, WorkerDown, WorkerUp

LEASE_S = 6.0  # half of it until the agent dials again, the other half for a slow machine
SLEEP = "import time\ntime.sleep(600)\n"


class Relay:
    """A wire between agents and a controller that can be cut so that neither side hears of it."""

    def __init__(self, port):
        self._port, self._black = port, set()
        self.pipes = []

    async def open(self):
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    def swallow(self):
        """From now on nothing passes on the lines that there are; new ones are whole."""
        self._black |= set(self.pipes)

    async def _carry(self, reader, writer):
        up, down = await asyncio.open_connection("127.0.0.1", self._port)
        ends = (reader, writer, up, down)
        self.pipes.append(ends)
        await asyncio.gather(self._pass(ends, reader, down), self._pass(ends, up, writer), return_exceptions=True)

    async def _pass(self, ends, source, target):
        while data := await source.read(65536):
            if ends not in self._black:
                target.write(data)
        if ends not in self._black:
            target.close()

    async def close(self):
        self._server.close()
        for _, writer, _, down in self.pipes:
            writer.close()
            down.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []


def test_an_agent_whose_line_has_died_silently_dials_again_with_its_workers(rig):
    async def scene():
        port = free_port()
        engine, ears, relay = LocalEngine(f"tcp:127.0.0.1:{port}", lease_s=LEASE_S), Ears(), Relay(port)
        await engine.open(ears.hear)
        engine.expect("n", "token")
        rig.agent("n", "token", address=f"tcp:127.0.0.1:{await relay.open()}", lease_s=LEASE_S)
        await ears.next(Hello)
        engine.send("n", rig.start("w", rig.script("sleep.py", SLEEP)))
        await ears.next(WorkerUp)
        relay.swallow()
        await until(lambda: len(ears.all(Hello)) == 2)
        assert ears.all(Hello)[1].workers == {"w": "job"}
        assert engine.send("n", EndWorker(worker_id="w"))
        await ears.next(WorkerDown, worker_id="w", code=-9)
        engine.send("n", Dismiss())
        await until(lambda: not rig.left())
        await relay.close()
        await engine.close()

    asyncio.run(scene())
