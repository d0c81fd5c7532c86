"""An agent that cannot serve says why, and so does every job that waits for its node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.engines.local import LocalEngine
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.rigs import until
from sublet.wire.messages import WIRE_VERSION, Hello
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer

GIVEN = "of n1"


def heard_by_an_engine(hello):
    heard, engine = [], LocalEngine("tcp:127.0.0.1:1", lease_s=30.0)
    engine._hear = lambda node_id, message: heard.append((node_id, message.trouble, dict(message.workers)))
    engine.expect("n1", GIVEN)
    cut = []

    async def admit():
        engine._admit(SimpleNamespace(cut=lambda: cut.append(True)), hello)

    asyncio.run(admit())
    assert cut == [True]
    return heard


def test_an_agent_of_another_version_is_cut_off_and_whoever_waits_for_it_is_told_what_to_do():
    hello = Hello(node_id="n1", token=GIVEN, pid=1, version=WIRE_VERSION + 1, workers={"w": "job-1"})
    ((node_id, why, workers),) = heard_by_an_engine(hello)
    assert (node_id, workers) == ("n1", {})
    assert f"its agent speaks version {WIRE_VERSION + 1}, this controller version {WIRE_VERSION}; next: install" in why


def test_an_agent_of_before_grids_comes_in_as_one_of_today_does():
    engine = LocalEngine("tcp:127.0.0.1:1", lease_s=30.0)
    engine.expect("n1", GIVEN)
    said = {version: Hello(node_id="n1", token=GIVEN, pid=1, version=version) for version in range(WIRE_VERSION + 2)}
    refused = {version for version, hello in said.items() if engine._reason_to_refuse(SimpleNamespace(), hello)}
    assert refused == {0, WIRE_VERSION + 1}


def test_of_a_stranger_that_says_it_is_of_another_version_nobody_hears():
    assert heard_by_an_engine(Hello(node_id="n1", token=GIVEN[:-1], pid=1, version=WIRE_VERSION + 1)) == []


def test_a_job_shows_that_the_agent_of_its_node_cannot_serve_until_one_can(tmp_path):
    async def live():
        cloud = MemoryCloud([one_gpu_offer("spot")], Clock(speedup=60.0))
        policy = plugins.load("sublet.policies", "max-speedup")()
        with api_over(cloud, tmp_path / "state", policy, limits={"spot": Limit(max_nodes=1)}) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.submit(JobSpec(name="job", argv=("x",), cwd="/", max_workers=1))
            agents, nodes = api._controller.nodes.agents, api._controller.kernel.cluster.nodes
            await until(lambda: nodes)
            node_id = next(iter(nodes))
            hello = Hello(node_id=node_id, token=GIVEN, pid=1, trouble="its agent speaks version 2")
            agents.receive(node_id, hello)
            warnings = api._controller.records["job-1"].warnings
            assert list(warnings.values()) == [f"{node_id} cannot serve: its agent speaks version 2"]
            agents.receive(node_id, Hello(node_id=node_id, token=GIVEN, pid=1))
            assert warnings == {}
            while not (told := [e["text"] for e in await api.events() if e["kind"] == "Alarm"]):  # noqa: ASYNC110 - of a store
                await asyncio.sleep(0.01)
            assert told == ["cannot serve: its agent speaks version 2"]
            await api.shutdown()
            await running

    asyncio.run(live())
