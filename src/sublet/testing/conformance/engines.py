"""Conformance of engines: carry every message in order, let no other peer in, leave no process."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from sublet.runtime.engines.protocol import Engine, Hear
from sublet.testing.conformance import Suite
from sublet.testing.rigs import Ears, EngineRig, until
from sublet.wire.files import Lacks, Offered, Part, Preparing, Printed, Uncarried, Wants
from sublet.wire.lines import LONGEST_LINE, to_line
from sublet.wire.messages import (
    Dismiss,
    EndWorker,
    Hello,
    Leave,
    Meet,
    Ping,
    Ready,
    RenewLease,
    Stepped,
    ToController,
    Welcome,
    WorkerDown,
    WorkerUp,
)

# A worker that says on its line what it hears there, and ends when told to leave.
ECHO = """
import json, os, socket
line = socket.socket(fileno=int(os.environ["SUBLET_CONTROL_FD"]))
me = os.environ["SUBLET_WORKER_ID"]
line.sendall(json.dumps({"type": "Ready", "worker_id": me}).encode() + b"\\n")
for text in line.makefile("rb"):
    facts = json.loads(text)
    if facts["type"] == "Leave":
        break
    said = {"type": "Stepped", "worker_id": me, "generation": 0, "step": facts["generation"], "done": 0.0, "epoch": 0,
            "loss": 0.0, "step_s": 0.0}
    line.sendall(json.dumps(said).encode() + b"\\n")
"""
TOKEN = "token"  # noqa: S105 - of a test
SLEEP = "import time\ntime.sleep(600)\n"
WAIT = "import time\nwhile not os.path.exists(os.path.join(os.path.dirname(__file__), 'now.py')): time.sleep(0.01)"
NO_HELLO = [b"{\n", b"\xff\xfe\n", b"[]\n", b'{"type":"Hello"}\n', b"x" * LONGEST_LINE, to_line(RenewLease())]


class EngineSuite(Suite):
    """Inherit it as `TestMine`, say `registered_as = "mine"`, and write `make_rig`: your machines from outside."""

    group = "sublet.engines"

    def make_rig(self) -> EngineRig:
        """Machines that belong to this test alone."""
        pytest.fail(f"{type(self).__name__}: write make_rig(), see sublet.testing.rigs.EngineRig")

    @pytest.fixture
    def rig(self) -> Iterator[EngineRig]:
        """A rig for one test, which must leave no process."""
        here = self.make_rig()
        yield here
        assert here.clean_up() == [], "these machines were left running"

    def test_order_is_kept_on_the_way_to_a_worker_and_back(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                rig.agent("n", "token")
                hello = await ears.next(Hello)
                assert (hello.node_id, hello.workers) == ("n", {})
                assert engine.send("n", rig.start("w", rig.script("echo.py", ECHO)))
                await ears.next(Ready)
                for number in range(500):
                    assert engine.send("n", meet("w", number))
                await until(lambda: len(ears.all(Stepped)) == 500)
                assert engine.send("n", Leave(worker_id="w", generation=0))
                await ears.next(WorkerDown, worker_id="w", code=0)
                assert [said.step for said in ears.all(Stepped)] == list(range(500))
                kinds = [type(getattr(message, "message", message)) for _, message in ears.heard]
                assert kinds == [Hello, WorkerUp, Ready, *[Stepped] * 500, WorkerDown]

        asyncio.run(scene())

    @pytest.mark.parametrize("token", ["wrong", ""])
    def test_an_agent_with_a_wrong_token_is_not_let_in_and_ends_by_itself(self, rig: EngineRig, token: str) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                rig.agent("n", token, lease_s=0.4)
                await until(lambda: not rig.left())
                assert ears.heard == []
                assert engine.send("n", RenewLease()) is False

        asyncio.run(scene())

    def test_an_agent_that_nobody_expects_is_not_let_in_and_nobody_hears_of_it(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                for stranger in (
                    Hello(node_id="other", token=TOKEN, pid=1),
                    Hello(node_id="n", token=f"not the {TOKEN}", pid=1, version=99),
                    WorkerUp(worker_id="w", pid=1),
                ):
                    assert await asyncio.to_thread(rig.stranger, to_line(stranger)) == b""
                assert ears.heard == []

        asyncio.run(scene())

    def test_an_agent_that_speaks_another_version_is_not_let_in_and_whoever_waits_hears_why(
        self, rig: EngineRig
    ) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                hello = Hello(node_id="n", token=TOKEN, pid=1, version=99, workers={"w": "job"})
                assert await asyncio.to_thread(rig.stranger, to_line(hello)) == b""
                heard = await ears.next(Hello)
                assert "version 99" in heard.trouble
                assert heard.workers == {}  # of which no message may come
                assert engine.send("n", RenewLease()) is False

        asyncio.run(scene())

    def test_a_message_to_a_node_without_an_agent_is_dropped_and_said_to_be(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                assert engine.send("n", RenewLease()) is False
                rig.agent("n", "token")
                await ears.next(Hello)
                assert engine.send("n", RenewLease()) is True
                rig.kill("n")
                await until(lambda: not engine.send("n", RenewLease()))

        asyncio.run(scene())

    def test_agent_and_workers_outlive_a_controller_and_come_to_the_next(self, rig: EngineRig) -> None:
        async def scene() -> None:
            first, ears = rig.engine(lease_s=20.0), Ears()
            await first.open(ears.hear)
            first.expect("n", "token")
            rig.agent("n", "token")
            await ears.next(Hello)
            first.send("n", rig.start("stays", rig.script("echo.py", ECHO)))
            first.send("n", rig.start("ends", rig.script("end.py", "import sys\nsys.exit(3)\n")))
            await ears.next(Ready)
            await ears.next(WorkerDown)
            await first.close()
            async with opened(rig) as (second, ears):
                second.expect("n", "token")
                hello = await ears.next(Hello)
                assert hello.workers == {"stays": "job"}
                await ears.next(WorkerDown, worker_id="ends", code=3)  # it may not have been read
                second.send("n", meet("stays", 7))
                assert (await ears.next(Stepped)).step == 7

        asyncio.run(scene())

    def test_what_workers_say_while_no_controller_is_there_comes_with_the_next_in_order(self, rig: EngineRig) -> None:
        async def scene() -> None:
            first, ears = rig.engine(lease_s=20.0), Ears()
            await first.open(ears.hear)
            first.expect("n", "token")
            rig.agent("n", "token")
            await ears.next(Hello)
            later = ECHO.replace("line.sendall", f"{WAIT}\nline.sendall", 1)
            later = later.replace("for text", "raise SystemExit(5)\nfor text")
            first.send("n", rig.start("w", rig.script("later.py", later)))
            await ears.next(WorkerUp)
            await first.close()
            rig.script("now.py", "")
            async with opened(rig) as (second, ears):
                second.expect("n", "token")
                await ears.next(WorkerDown, code=5)
                assert [type(getattr(message, "message", message)) for _, message in ears.heard][:3] == [
                    Hello,
                    Ready,
                    WorkerDown,
                ]

        asyncio.run(scene())

    def test_without_a_controller_agent_and_workers_end_when_the_lease_does(self, rig: EngineRig) -> None:
        async def scene() -> None:
            engine, ears = rig.engine(lease_s=3.0), Ears()
            await engine.open(ears.hear)
            engine.expect("n", "token")
            rig.agent("n", "token")
            await ears.next(Hello)
            engine.send("n", rig.start("w", rig.script("sleep.py", SLEEP)))
            await ears.next(WorkerUp)
            await asyncio.sleep(3.5)  # renewed meanwhile
            assert rig.left() == ["n"]
            await engine.close()
            began_s = asyncio.get_running_loop().time()
            await until(lambda: not rig.left())
            assert asyncio.get_running_loop().time() - began_s < 25.0, "the lease is that of its controller"

        asyncio.run(scene())

    def test_a_second_agent_of_a_node_takes_the_place_of_the_first(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                reader, writer = await rig.connect()
                writer.write(to_line(Hello(node_id="n", token=TOKEN, pid=1)))
                assert json.loads(await reader.readline())["type"] == Welcome.__name__
                rig.agent("n", "token")
                await until(lambda: len(ears.all(Hello)) == 2)
                assert await reader.read() == b""  # hung up on
                writer.close()
                engine.send("n", rig.start("w", rig.script("sleep.py", SLEEP)))
                await ears.next(WorkerUp)

        asyncio.run(scene())

    def test_bad_lines_of_an_agent_are_skipped_and_what_follows_is_heard(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                bad = [b"{\n", b"\xff\xfe\n", b"[]\n", b'{"type":"Hello"}\n', b"x" * (LONGEST_LINE + 5) + b"\n"]
                hello = to_line(Hello(node_id="n", token=TOKEN, pid=1))
                said: list[ToController] = [Preparing(worker_id="w"), Lacks(digests=("a",)), Part(digest="a")]
                said += [Offered(worker_id="w", generation=1, root="a", size_bytes=1), Uncarried(worker_id="w", why="")]
                said += [Wants(worker_id="w", generation=1)]
                said += [Printed(worker_id="w", offset=0, data=""), WorkerUp(worker_id="w", pid=1)]
                talk = asyncio.create_task(asyncio.to_thread(rig.stranger, hello, *bad, *map(to_line, said)))
                await ears.next(WorkerUp, worker_id="w")
                assert [message for _, message in ears.heard[1:]] == said
                await asyncio.sleep(0)
                engine.expect("m", "token")
                rig.agent("m", "token")
                await ears.next(Hello, node_id="m")
                await engine.close()
                assert json.loads((await talk).splitlines()[0])["type"] == "Welcome"
                await engine.open(ears.hear)
                await until(lambda: len(ears.all(Hello, node_id="m")) == 2)

        asyncio.run(scene())

    def test_whoever_does_not_begin_with_hello_is_hung_up_on_at_once_and_fills_no_log(
        self, rig: EngineRig, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, ears):
                engine.expect("n", "token")
                for first in NO_HELLO:
                    long = first.rstrip(b"\n") + b"\x1b[31m" + b"x" * 5_000 + b"\n"
                    assert await asyncio.to_thread(rig.stranger, first, *[long] * 200) == b""
                    assert await asyncio.to_thread(rig.stranger, *[long] * 20) == b""
                hello = to_line(Hello(node_id="n", token=TOKEN, pid=1))
                assert await asyncio.to_thread(rig.stranger, b"{\n", hello) == b"", "too late: it is hung up on"
                for _ in range(100):
                    await asyncio.to_thread(rig.stranger, b"{\n")
                assert ears.heard == []

        asyncio.run(scene())
        texts = [record.getMessage() for record in caplog.records if record.name.startswith("sublet")]
        assert sum(map(len, texts)) < 10_000
        assert max(map(len, texts)) <= 200
        assert all(text.isprintable() for text in texts)

    def test_an_agent_that_says_nothing_of_use_is_cut_off_before_it_costs_much(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, _):
                engine.expect("n", "token")
                hello = to_line(Hello(node_id="n", token=TOKEN, pid=1))
                talk = asyncio.create_task(asyncio.to_thread(rig.stranger, hello, b"{\n" * 30_000))
                await asyncio.wait_for(talk, 120.0)  # until it is hung up on
                assert not engine.send("n", RenewLease())

        asyncio.run(scene())

    def test_strangers_are_few_and_an_agent_comes_in_all_the_same(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig) as (engine, _):
                engine.expect("n", "token")
                lines = [await rig.connect() for _ in range(200)]
                reader, writer = await rig.connect()
                writer.write(to_line(Hello(node_id="n", token=TOKEN, pid=1)))
                assert json.loads(await asyncio.wait_for(reader.readline(), 120.0))["type"] == Welcome.__name__
                still = 0
                for stranger, _ in lines:
                    try:
                        still += await asyncio.wait_for(stranger.read(), 0.01) != b""
                    except TimeoutError:
                        still += 1
                    except ConnectionError:
                        pass
                assert still <= 64
                for _, out in [*lines, (reader, writer)]:
                    out.close()

        asyncio.run(scene())

    def test_an_agent_that_falls_silent_is_hung_up_on_and_one_that_pings_is_not(self, rig: EngineRig) -> None:
        async def scene() -> None:
            async with opened(rig, lease_s=3.0) as (engine, ears):
                lines = {}
                for name in ("silent", "pings"):
                    engine.expect(name, "token")
                    lines[name] = reader, writer = await rig.connect()
                    hello = json.loads(to_line(Hello(node_id=name, token=TOKEN, pid=1)))
                    writer.write(json.dumps({**hello, "pings": True}).encode() + b"\n")
                    assert json.loads(await reader.readline())["type"] == Welcome.__name__
                ended = asyncio.create_task(lines["silent"][0].read())
                for _ in range(100):
                    lines["pings"][1].write(b'{"type":"Ping"}\n')
                    if ended.done():
                        break
                    await asyncio.sleep(0.1)
                assert ended.done(), "the line was kept, though nothing came on it"
                assert not engine.send("silent", RenewLease())
                assert engine.send("pings", RenewLease())
                heard = [(node_id, type(message)) for node_id, message in ears.heard]
                assert heard[:2] == [("silent", Hello), ("pings", Hello)]
                assert set(heard[2:]) == {("pings", Ping)}, "who is heard is for the controller to know"
                for _, writer in lines.values():
                    writer.close()

        asyncio.run(scene())

    def test_a_hearer_that_fails_does_not_cost_the_line_nor_fill_the_log(
        self, rig: EngineRig, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails(node_id: str, message: ToController) -> None:
            ears.hear(node_id, message)
            raise RuntimeError("a fault of the controller's")

        async def scene() -> None:
            async with opened(rig, hear=fails, ears=ears) as (engine, _):
                engine.expect("n", "token")
                rig.agent("n", "token")
                await ears.next(Hello)
                engine.send("n", rig.start("w", rig.script("sleep.py", SLEEP)))
                await ears.next(WorkerUp)
                engine.expect("m", "token")
                _, writer = await rig.connect()
                writer.write(to_line(Hello(node_id="m", token=TOKEN, pid=1)))
                for number in range(200):
                    writer.write(to_line(WorkerUp(worker_id=f"x{number}", pid=1)))
                await until(lambda: len(ears.all(WorkerUp)) == 201)
                writer.close()
                engine.send("n", EndWorker(worker_id="w"))
                await ears.next(WorkerDown, worker_id="w", code=-9)

        ears = Ears()
        asyncio.run(scene())
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 20


@asynccontextmanager
async def opened(
    rig: EngineRig, *, ears: Ears | None = None, hear: Hear | None = None, **knobs: float
) -> AsyncIterator[tuple[Engine, Ears]]:
    """An engine with ears; all agents that came are dismissed at the end."""
    engine, ears = rig.engine(**knobs), ears or Ears()
    await engine.open(hear or ears.hear)
    try:
        yield engine, ears
    finally:
        for node_id in {node_id for node_id, _ in ears.heard}:
            engine.send(node_id, Dismiss())
        await until(lambda: not rig.left())
        await engine.close()


def meet(worker_id: str, number: int) -> Meet:
    """A message with a number in it, to tell one from another."""
    return Meet(worker_id=worker_id, generation=number, host="h", port=1)
