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


@pytest.mark.long
def test_jobs_that_mount_one_path_have_each_its_own_and_the_machine_is_as_it_was(rig):
    home, work, there = rig.folder / "ada", rig.folder / "project", rig.folder / "data" / "there.json"
    for folder in (home, work):
        folder.mkdir()
    (home / "tokens.json").write_text("the owner's", encoding="utf-8")
    (home / "tokens.json").chmod(0o600)
    for name in "ab":
        (work / f"{name}.json").write_text(f"of {name}", encoding="utf-8")
        (work / f"{name}.json").chmod(0o600)
    script = "cat ~/tokens.json; stat -c ' %a' ~/tokens.json; cd ~/sky_workdir; touch ready; ls"
    script += "; until test -e go; do sleep 0.1; done"

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

        async def submit(name, source, *paths):
            mounts = {path: str(work / source) for path in ("~/tokens.json", *paths)}
            facts = {"cwd": str(work), "mounts": mounts, "sdk": False, "max_workers": 1}
            spec = JobSpec(name=name, argv=("bash", "-c", script), **facts)
            job_id = (await api.submit(spec))["job_id"]
            return api.record(job_id), state / "jobs" / job_id / "logs"

        first, first_logs = await submit("first", "a.json", str(there))
        await reaches(lambda: len(list(home.rglob("ready"))) == 1)
        second, second_logs = await submit("second", "b.json")
        await reaches(lambda: len(list(home.rglob("ready"))) == 2)
        assert there.read_text(encoding="utf-8") == "of a"
        for path in list(home.rglob("ready")):
            (path.parent / "go").touch()
        await reaches(lambda: first.outcome and second.outcome)
        for job, logs, name in ((first, first_logs, "a"), (second, second_logs, "b")):
            assert job.outcome == "finished"
            (log,) = logs.glob("*.log")
            assert f"of {name} 600\na.json\nb.json\nready\n" in log.read_text(encoding="utf-8")
        await api.shutdown(end_jobs=True)
        await running
        assert rig.left() == []

    asyncio.run(scene())
    assert (home / "tokens.json").read_text(encoding="utf-8") == "the owner's"
    assert [path.name for path in home.iterdir() if not path.name.startswith(".")] == ["tokens.json"]
    assert list(home.rglob("a.json")) == []
    assert not there.exists()
