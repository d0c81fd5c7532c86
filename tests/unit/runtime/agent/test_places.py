"""What an agent gives to its workers of the machine: GPUs for as long as they live, an address, a port to meet at."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from contextlib import asynccontextmanager

import pytest

from sublet.runtime.agent.devices import Devices, found_devices
from sublet.runtime.agent.host import free_port, interface_of, own_address
from sublet.runtime.group.build import build_group
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.rigs import Ears, LocalRig, until
from sublet.wire.messages import Dismiss, EndWorker, Hello, StartWorker, WorkerDown, WorkerUp

SHOW = "import json, os\nprint(json.dumps(dict(os.environ)), flush=True)\n"
STAY = SHOW + "import time\ntime.sleep(600)\n"
NETWORK = ("SUBLET_HOST", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture
def rig(monkeypatch):
    for name in (*NETWORK, "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    here = LocalRig()
    yield here
    assert here.clean_up() == []


@asynccontextmanager
async def agent(rig):
    engine, ears = rig.engine(), Ears()
    await engine.open(ears.hear)
    engine.expect("n", "token")
    rig.agent("n", "token")
    await ears.next(Hello)
    try:
        yield lambda message: engine.send("n", message), ears
    finally:
        engine.send("n", Dismiss())
        await until(lambda: not rig.left())
        await engine.close()


class Job:
    """A group whose orders go to the one agent."""

    def __init__(self, rig, send, script, workers, **facts):
        self.rig, self.send, self.script = rig, send, script
        spec = JobSpec(name="j", argv=(sys.executable, script), cwd="", max_workers=workers, **{"sdk": True, **facts})
        self.group = build_group("j-1", spec, log_of=lambda worker_id: str(rig.folder / f"{worker_id}.log"), env=dict)
        self.started = []
        self.group.move(1, (("n", workers),), 0, 0.0)

    def flush(self, ears):
        """Both ways."""
        for _, message in ears.heard:
            if isinstance(message, WorkerUp):
                self.group.hear(message, 0.0)
        for _, message in self.group.outbox:
            if isinstance(message, StartWorker):
                self.started.append(message.worker_id)
                self.send(message)
        self.group.outbox.clear()

    async def found(self, ears, workers):
        """What each of them printed as its environment."""

        def all_printed():
            self.flush(ears)
            done = [worker_id for worker_id in self.started if self.rig.printed(worker_id).endswith("\n")]
            return len(done) == workers

        await until(all_printed)
        return [json.loads(self.rig.printed(worker_id)) for worker_id in self.started]


# ---------------------------------------------------------------------- GPUs


def test_workers_of_one_node_see_a_gpu_each_among_those_that_the_node_may_see(rig, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")

    async def scene():
        async with agent(rig) as (send, ears):
            job = Job(rig, send, rig.script("stay.py", STAY), 2)
            found = await job.found(ears, 2)
            assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == ["4", "6"]
            assert [env["LOCAL_RANK"] for env in found] == ["0", "0"]  # of the devices that it sees
            assert [(env["RANK"], env["WORLD_SIZE"]) for env in found] == [("0", "2"), ("1", "2")]
            send(EndWorker(worker_id=job.started[1]))  # its GPU is free again, and goes to the next
            await ears.next(WorkerDown, worker_id=job.started[1])
            send(rig.start("next", rig.script("show.py", SHOW)))
            await ears.next(WorkerDown, worker_id="next")
            assert json.loads(rig.printed("next"))["CUDA_VISIBLE_DEVICES"] == "6"

    asyncio.run(scene())


def test_workers_of_an_unmodified_script_see_all_gpus_of_their_job_and_count_through_them(rig, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")

    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("other", rig.script("stay.py", STAY)))
            await ears.next(WorkerUp)
            job = Job(rig, send, rig.script("show.py", SHOW), 2, sdk=False)
            found = await job.found(ears, 2)
            assert [env["CUDA_VISIBLE_DEVICES"] for env in found] == ["1,2", "1,2"]
            assert [env["LOCAL_RANK"] for env in found] == ["0", "1"]

    asyncio.run(scene())


def test_a_gpu_that_the_job_file_chooses_is_left_to_it(rig, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")

    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("show.py", SHOW), env={"CUDA_VISIBLE_DEVICES": ""}))
            await ears.next(WorkerDown)
            assert json.loads(rig.printed("w"))["CUDA_VISIBLE_DEVICES"] == ""

    asyncio.run(scene())


def test_workers_share_gpus_only_where_there_are_fewer():
    devices = Devices(["x", "y"])
    assert [devices.take(worker) for worker in "abc"] == [("x",), ("y",), ("x",)]
    devices.give_back("b")
    assert devices.take("d") == ("y",)
    assert devices.take("e", count=2, together="job") == devices.take("f", count=2, together="job")
    assert Devices([]).take("a") == ()


@pytest.mark.parametrize(("own", "names"), [("2,GPU-ab", ("2", "GPU-ab")), ("1,-1,2", ("1",)), ("", ()), ("-1", ())])
def test_what_a_user_hides_from_the_node_is_not_given_to_workers(own, names):
    assert found_devices({"CUDA_VISIBLE_DEVICES": own}) == names


# ---------------------------------------------------------------------- addresses


def test_a_worker_beside_its_controller_meets_others_on_loopback(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("show.py", SHOW)))
            await ears.next(WorkerDown, code=0)
            env = json.loads(rig.printed("w"))
            assert [env[name] for name in NETWORK] == [
                "127.0.0.1",
                "lo",
                "=lo",
            ]  # NCCL: this one, not all that begin so
            assert ears.all(Hello)[0].host == "127.0.0.1"

    asyncio.run(scene())


def test_addresses_that_a_user_has_set_are_left_alone(rig, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")

    async def scene():
        async with agent(rig) as (send, ears):
            send(rig.start("w", rig.script("show.py", SHOW), env={"GLOO_SOCKET_IFNAME": "bond0"}))
            await ears.next(WorkerDown, code=0)
            env = json.loads(rig.printed("w"))
            assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("bond0", "ib0")

    asyncio.run(scene())


def test_the_line_tells_the_address_unless_it_is_a_tunnel():
    assert own_address("") == "127.0.0.1"
    assert own_address("10.1.2.3") == "10.1.2.3"
    ours = own_address("127.0.0.1")
    assert interface_of(ours), "it is one of this machine's"
    assert interface_of("127.0.0.1") == "lo"


def test_an_unmodified_script_meets_where_the_agent_of_its_first_worker_has_a_free_port(rig):
    async def scene():
        async with agent(rig) as (send, ears):
            job = Job(rig, send, rig.script("show.py", SHOW), 2, sdk=False)
            job.flush(ears)
            assert len(job.started) == 1, "the others do not start before it is known where to meet"
            found = await job.found(ears, 2)
            meetings = {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found}
            up = ears.all(WorkerUp)[0]
            assert meetings == {(up.host, str(up.port))} == {("127.0.0.1", str(up.port))}
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", up.port))
            assert os.environ.get("MASTER_PORT") is None

    asyncio.run(scene())


def test_no_port_is_offered_twice():
    first = free_port(set())
    assert all(free_port({first}) != first for _ in range(50))
