"""A node from its rent to its end, with real processes: provider, template, agent, workers and what they start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import asynccontextmanager
from importlib import util
from inspect import iscoroutinefunction
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from sublet.domain.actions import RentNode
from sublet.domain.events import AvailabilityChanged, NodeLost, NodeNoticed
from sublet.runtime.agent import processes
from sublet.runtime.clock import Clock
from sublet.runtime.providers.local import records
from sublet.runtime.providers.local.nodes import Template
from sublet.runtime.providers.local.records import Records
from sublet.sim.world import Physics, World
from sublet.testing.rigs import Ears, LocalRig, until
from sublet.testing.values import an_offer
from sublet.wire.messages import EndWorker, Hello, WorkerDown, WorkerUp
from sublet_lab.walls import WallOf


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []
    assert running_in(here.folder) == []


def running_in(folder):
    """Processes that were started in this folder and stayed there, whoever their parents are."""
    found = []
    for process in processes.everybody():
        try:
            if Path(f"/proc/{process.pid}/cwd").readlink() == folder and process.pid != os.getpid():
                found.append(process.pid)
        except OSError:
            continue
    return found


@asynccontextmanager
async def controller(rig, *held, **knobs):
    """Engine and provider with one pair of ears; `held` are rented and have said Hello."""
    engine, provider, ears = rig.engine(), rig.provider(**knobs), Ears()
    await engine.open(ears.hear)
    await provider.open(ears.tell)
    try:
        for node_id in held:
            engine.expect(node_id, f"token-{node_id}")
            await provider.rent(node_id, "spot", f"token-{node_id}")
            await ears.next(Hello, node_id=node_id)
        yield engine, provider, ears
    finally:
        for node in await provider.list():
            await provider.release(node.node_id)
        await provider.close()
        await engine.close()


# A worker with a child, a grandchild, and a daemon that has left session and group and lost its parents.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def tell(name): print(name, os.getpid(), flush=True)
tell("worker")
if os.fork() == 0:
    tell("child")
    if os.fork() == 0:
        tell("grandchild")
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        tell("daemon")
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def family(rig, worker_id):
    text = rig.printed(worker_id)
    lines = [line.split() for line in text.splitlines()]
    whole = text.endswith("\n") and [len(line) for line in lines] == [2] * 4
    return {name: int(pid) for name, pid in lines} if whole else None


@pytest.mark.parametrize("end", ["release", "agent killed", "worker ended"])
def test_however_a_node_ends_nothing_of_it_is_left(rig, end):
    async def scene():
        async with controller(rig, "a", "b") as (engine, provider, ears):
            for node_id in ("a", "b"):
                engine.send(node_id, rig.start(f"w-{node_id}", rig.script("family.py", FAMILY)))
            mine = await until(lambda: family(rig, "w-a"))
            others = await until(lambda: family(rig, "w-b"))
            agent = next(message.pid for message in ears.all(Hello) if message.node_id == "a")
            if end == "release":
                await provider.release("a")
                assert [name for name, pid in mine.items() if processes.look(pid)] == []
            elif end == "agent killed":
                os.kill(agent, signal.SIGKILL)
                await ears.next(NodeLost, node_id="a")
            else:
                engine.send("a", EndWorker(worker_id="w-a"))
                await ears.next(WorkerDown, worker_id="w-a")
                del mine["daemon"]  # it lives as long as the node: nothing tells whose it was
            await until(lambda: not any(processes.look(pid) for pid in mine.values()))
            assert all(processes.look(pid) for pid in others.values())  # the other node feels nothing

    asyncio.run(scene())


def test_a_node_that_boots_slowly_comes_when_it_has_booted(rig):
    async def scene():
        rig.clock = Clock(speedup=100.0)
        async with controller(rig, boot_s=40.0) as (engine, provider, ears):
            engine.expect("a", "token")
            began_s = rig.clock.now_s()
            await provider.rent("a", "spot", "token")
            assert [node.node_id for node in await provider.list()] == ["a"]  # paid for already
            await ears.next(Hello)
            assert rig.clock.now_s() - began_s >= 40.0

    asyncio.run(scene())


@pytest.mark.parametrize("seed", range(2))
def test_the_replayed_market_takes_whom_the_simulated_one_takes(rig, seed):
    nodes = ("a", "b", "c", "d", "e")
    market = [AvailabilityChanged(t_s, "spot", n) for t_s, n in ((0.0, 5), (50.0, 4), (80.0, 2), (90.0, 9), (95.0, 1))]
    world = World([an_offer("spot", gpus=1)], Physics(notice_s=20.0), np.random.default_rng(seed), market)
    simulated = []
    while world.agenda:
        at_s, what = world.agenda.pop()
        simulated += world.occur(at_s, what)
        if at_s == 0.0 and isinstance(what, AvailabilityChanged):
            simulated += [event for node_id in nodes for event in world.obey(0.0, RentNode(node_id, "spot"))]
    expected = [(type(event), event.node_id) for event in simulated if isinstance(event, NodeNoticed | NodeLost)]
    assert len(expected) == 8

    async def scene():
        rig.clock = Clock(speedup=100.0, wall=WallOf(rig.watch))
        async with controller(rig, *nodes, market=market, notice_s=20.0, seed=seed) as (_, _, ears):
            rig.watch.start()
            await until(lambda: len(ears.all(AvailabilityChanged)) == 5)
            assert [(type(e), e.node_id) for e in ears.all(NodeNoticed | NodeLost)] == expected

    asyncio.run(scene())


# ---------------------------------------------------------------------- crashes of the controller

STEPS = (  # what renting and releasing is made of; a controller may die before or after each
    (Records, "write"),
    (records, "new_life"),
    (socket, "send_fds"),
    (Template, "_hear"),
    (Records, "remove"),
    (processes, "kill_instance"),
)


def dies_at(point, rig):
    """A controller that rents a node and releases it, killed at its nth chance; whether it was."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    seen = count()

    def here():
        if next(seen) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def dangerous(step):
        def plain(*arguments):
            here()
            answer = step(*arguments)
            here()
            return answer

        async def awaited(*arguments):
            here()
            answer = await step(*arguments)
            here()
            return answer

        return awaited if iscoroutinefunction(step) else plain

    async def work():
        provider = rig.provider()
        await provider.open(lambda news: None)
        await provider.rent("a", "spot", "token-a")
        await provider.release("a")

    os.chdir(rig.folder)  # template and agents stay here, so that none can hide
    for owner, name in STEPS:
        setattr(owner, name, dangerous(getattr(owner, name)))
    try:
        asyncio.run(work())
    finally:
        os._exit(0)


def test_a_controller_that_dies_at_any_step_leaves_nothing_that_the_next_does_not_find(rig):
    async def reconcile():
        provider, ears = rig.provider(), Ears()
        await provider.open(ears.tell)
        nodes = await provider.list()
        assert sorted(node.node_id for node in nodes) == rig.left()
        agents = {int(node.instance.split()[1]) for node in nodes}
        await until(lambda: set(running_in(rig.folder)) == agents)  # nobody whom it does not know
        for node in nodes:
            await provider.release(node.node_id)
        assert running_in(rig.folder) == []
        await provider.close()
        return frozenset(node.node_id for node in nodes)

    found = []
    for point in count():
        died = dies_at(point, rig)
        found.append(asyncio.run(reconcile()))
        if not died:
            break
    assert len(found) == 17  # before and after: the template's first word, 5 steps of the rent, 2 of the release; never
    assert found[0] == found[-1] == frozenset()
    assert set(found) == {frozenset(), frozenset("a")}


@pytest.mark.skipif(util.find_spec("torch") is None, reason="needs the extra torch")
def test_workers_of_a_warm_template_have_torch_at_once_and_chances_of_their_own(rig):
    text = """
import sys
before = "torch" in sys.modules
import json, os, random, threading, numpy, torch
print(json.dumps({"warm": before, "numpy": numpy.random.random(), "python": random.random(),
                  "threads": torch.get_num_threads(), "sum": float(torch.ones(9, 9).mm(torch.ones(9, 9)).sum())}))
"""

    async def scene():
        async with controller(rig, "a", preload=("torch", "no_such_module")) as (engine, _, ears):
            script = rig.script("warm.py", text)
            for number in range(3):
                engine.send("a", rig.start(f"w{number}", script, env={"OMP_NUM_THREADS": "1"}))
            await until(lambda: len(ears.all(WorkerDown)) == 3)
            assert {down.code for down in ears.all(WorkerDown)} == {0}
            said = [json.loads(rig.printed(f"w{number}")) for number in range(3)]
            assert all(facts["warm"] and facts["threads"] == 1 and facts["sum"] == 729.0 for facts in said)
            assert len({facts["numpy"] for facts in said}) == len({facts["python"] for facts in said}) == 3
            assert len(ears.all(WorkerUp)) == 3

    asyncio.run(scene())
