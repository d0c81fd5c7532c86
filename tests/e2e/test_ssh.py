"""Machines of one's own, reached by ssh alone: a job on two of them, whose connections break and come back."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings
from sublet.testing.rigs import until
from tests.rigs.ssh_hosts import SshRig

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def rig():
    here = SshRig()
    yield here
    assert here.clean_up() == []


def free_ports():
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def hosts_file(rig, port, tunnel_port):
    """Machine and controller share a loopback here, so the way back has two ends on it; one machine has the tunnel."""
    lines = [f"python = {sys.executable!r}", f"agents_port = {port}", f"tunnel_port = {tunnel_port}", "preload = []"]
    for host in rig.hosts[:1]:
        lines += ["[[hosts]]", f"name = {host.name!r}", "host = '127.0.0.1'", f"port = {host.port}", "slots = 2"]
        lines += [f"user = {host.user!r}", f"key = {host.key!r}", f"host_key = {host.host_key!r}"]
    path = rig.folder / "hosts.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_a_job_trains_through_the_way_back_which_breaks_and_is_made_again(rig):
    async def scene():
        state = rig.folder / "state"
        state.mkdir()
        settings = Settings(state_dir=str(state), provider="ssh", hosts=hosts_file(rig, *free_ports()))
        api = controller_from(settings)
        running = asyncio.create_task(api.run())
        await asyncio.wait([running, asyncio.create_task(api.started())], return_when=asyncio.FIRST_COMPLETED)

        async def reaches(condition):
            await until(lambda: running.done() or condition())
            assert not running.done(), running.exception()

        script = ("train_mlp.py", "--samples", "4000", "--epochs", "2", "--ms-per-sample", "1")
        spec = JobSpec(name="mlp", argv=(sys.executable, *script), cwd=str(EXAMPLES), min_workers=2, max_workers=2)
        job = api.record((await api.submit(spec))["job_id"])
        await reaches(lambda: job.group.size == 2 and job.group.step > 3)
        heard = job.group.step
        rig.server.cut("ada")
        rig.server.mend("ada")
        await reaches(lambda: job.outcome)
        assert heard < job.group.step
        assert (job.outcome, job.steps_lost, job.unnoticed) == ("finished", 0, 0)
        await api.shutdown(end_jobs=True)
        await running
        assert rig.left() == []

    asyncio.run(scene())
