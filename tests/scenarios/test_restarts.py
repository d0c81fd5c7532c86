"""Scenarios 1 and 31 on real processes: controllers that die anywhere, machines that nobody reaches for a while."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.memory_cloud import api_over
from tests.chaos import episodes
from tests.chaos.rig import CRASH_POINTS, rig
from tests.rigs import hosts as machines
from tests.scenarios.stage import TALKER, Stage

pytestmark = pytest.mark.timeout(900)
KILLED = (1, "the controller is killed before and after every commit and provider call", "L")
PARTED = (31, "a network partition of 30 s, 5 min, 1 h; one way only", "L")


@pytest.mark.scenario(*KILLED, heavy=True)
def test_01_a_real_controller_may_die_at_any_kind_of_commit_and_call(full, measured):
    """`episodes.crash` looks after two comparisons with the cloud that what runs is what is held, and at the bill."""
    points = list(CRASH_POINTS) if full else random.Random(1).sample(CRASH_POINTS, 1)
    found = [episodes.crash(point) for point in points]
    measured(
        f"{len(points)} of {len(CRASH_POINTS)} kinds of points: {sum(each['deaths'] for each in found):.0f} deaths, "
        f"{max(each['steps_lost'] for each in found):.0f} steps lost at most, 0 nodes left or twice"
    )


@pytest.mark.scenario(*KILLED)
def test_01_a_start_with_hundreds_of_jobs_forgets_none_of_them(full, measured):
    jobs = 500 if full else 60
    with rig(Stage, speedup=10.0, most_nodes=1) as stage:
        stage.start()
        for number in range(jobs):
            stage.talk(steps=100_000, max_workers=1, name=f"job{number}", key=f"key{number}")
        stage.kill()
        began_s = time.monotonic()
        stage.start()
        took_s = time.monotonic() - began_s
        known = (stage.ask("jobs") or {})["jobs"]
        assert len(known) == jobs
        assert stage.talk(steps=100_000, max_workers=1, name="job7", key="key7") == "job7-1", "a key was forgotten"
    measured(f"a start with {jobs} jobs: {took_s:.1f} s until it answers, interpreter included")


@pytest.mark.scenario(*PARTED, heavy=True, lacks="hours, and one way only: level S has them")
def test_31_a_machine_that_cannot_be_reached_trains_on_and_is_the_same_afterwards(
    tmp_path, full, measured, monkeypatch
):
    """A machine in a network of its own, whose way to the controller stalls: nothing is lost, nothing is answered."""
    parted_s = 40.0 if full else 5.0  # its lease is a minute
    monkeypatch.setattr(machines, "PRELOAD", ())
    cloud = machines.Hosts(tmp_path)
    try:
        cloud.build()
    except machines.NoHosts as error:
        pytest.skip(str(error))
    try:
        before, during, view = asyncio.run(_parted(cloud, tmp_path, parted_s))
    finally:
        cloud.clear()
    assert (view["phase"], view["failures_infra"], view["steps_lost"]) == ("running", 0, 0)
    assert view["step"] > during
    measured(
        f"parted for {parted_s:g} s of a lease of 60 s: {during - before} steps meanwhile, no worker or node replaced"
    )


async def _parted(cloud, folder, parted_s):
    """Steps saved before and during it, and the job some steps after it."""
    policy = plugins.load("sublet.policies", "max-speedup")()
    with api_over(cloud, folder / "state", policy, limits={"on-demand": Limit(max_nodes=1)}) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        argv = (sys.executable, str(TALKER), "1000000", "20")
        spec = JobSpec(name="j", argv=argv, cwd=str(folder), max_workers=1, checkpoint_every_s=1.0)
        await api.submit(spec)
        await _until(lambda: _saved(folder) > 0)
        (node,), workers = cloud._nodes.values(), set(api.record("j-1").group.workers)
        relay = cloud._relays[cloud._names.index(node[0])]
        before = _saved(folder)
        relay.send_signal(signal.SIGSTOP)
        await asyncio.sleep(parted_s)
        await _until(lambda: _saved(folder) > before)  # it trains meanwhile
        during = _saved(folder)
        relay.send_signal(signal.SIGCONT)
        heard = (await api.job("j-1"))["step"]
        await _until(lambda: api.record("j-1").group.step > max(heard, during))
        view = await api.job("j-1")
        assert list(cloud._nodes.values()) == [node], "it was given back"
        assert set(api.record("j-1").group.workers) == workers, "its worker was replaced"
        await api.shutdown(end_jobs=True)
        await asyncio.gather(running, return_exceptions=True)
    return before, during, view


async def _until(condition, patience_s=90.0):
    ends_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < ends_s
        await asyncio.sleep(0.05)


def _saved(folder):
    with contextlib.suppress(OSError, ValueError):
        return int((folder / "state" / "jobs" / "j-1" / "checkpoints" / "step").read_text(encoding="ascii"))
    return -1
