"""What jobs are brought outside of their working directory: nobody's file is replaced, and nothing stays.

Homes of jobs on a disk, and real agents that share nothing with their controller.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sublet.machine.files import FILES
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.homes import Homes
from sublet.runtime.agent.outside import sweep
from sublet.runtime.providers.local.records import Records
from sublet.testing.rigs import LocalRig, until
from sublet.wire.messages import WorkerDown, WorkerUp
from tests.rigs.blind_node import scene


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []


@pytest.fixture
def owner(tmp_path, monkeypatch):
    """The home of the machine's owner."""
    home = tmp_path / "owner"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("the owner's")
    (home / ".bashrc").write_text("# the owner's\n")
    (home / ".bashrc").chmod(0o600)
    (home / "tokens.json").write_text("the owner's")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.json").write_text(f"of {name}")
    return folder


def state_of(folder):
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------- homes


def test_a_job_has_what_is_in_the_machines_home_and_its_own_in_the_place_of_what_it_mounts(tmp_path, owner):
    (owner / "sky_workdir").mkdir()
    (owner / "tokens.json.new").write_text("the owner's draft")
    before = state_of(owner)
    homes, place = Homes(tmp_path / "homes", owner), tmp_path / "place"
    place.mkdir()
    home = homes.home("job-1", str(place), ["~/tokens.json", "~/.ssh/key", "~/data"])
    assert (home / ".ssh" / "id").read_text() == "the owner's"
    assert (home / ".bashrc").read_text() == "# the owner's\n"
    assert (home / "sky_workdir").resolve() == place
    assert not (home / "tokens.json").exists()
    for name in ("tokens.json", "tokens.json.new", ".ssh/key", ".bashrc"):
        (home / name).write_text("the job's")
    assert state_of(owner) == before
    assert (homes.home("job-1", str(place), ["~/tokens.json"]) / "tokens.json").read_text() == "the job's"
    assert (homes.home("job-2", str(place), []) / "tokens.json").read_text() == "the owner's"
    (home / ".cache" / "model").write_text("fetched once")
    assert (owner / ".cache" / "model").read_text() == "fetched once"
    FILES.remove_tree(tmp_path / "homes")
    assert state_of(owner).items() >= before.items(), "no link is followed when the node is given back"


# ---------------------------------------------------------------------- agents


def test_two_jobs_that_mount_one_path_of_home_read_each_its_own_and_the_owner_keeps_his(rig, owner, work):
    before = state_of(owner)
    script = "until test -e go; do sleep 0.05; done; cat ~/tokens.json ~/.bashrc; cd ~/sky_workdir && pwd -P && ls"

    async def live():
        async with scene(rig) as sender:
            for job, name in (("job-1", "a"), ("job-2", "b")):
                mounts = {"~/tokens.json": str(work / f"{name}.json"), "~/.bashrc": str(work / f"{name}.json")}
                setup = "cat ~/tokens.json > of-setup"
                await sender.start(f"{job}.1.0", ("bash", "-c", script), cwd=str(work), mounts=mounts, setup=setup)
                await sender.next(WorkerUp, worker_id=f"{job}.1.0")
            places = sorted((rig.folder).rglob("of-setup"))
            for place in places:
                (place.parent / "go").touch()
            assert sorted(place.read_text() for place in places) == ["of a", "of b"]
            for job, name in (("job-1", "a"), ("job-2", "b")):
                assert (await sender.next(WorkerDown, worker_id=f"{job}.1.0")).code == 0
                told = sender.log(f"{job}.1.0")
                assert told.startswith(f"of {name}of {name}/")
                assert told.splitlines()[1:] == ["a.json", "b.json", "go", "of-setup"]

    asyncio.run(live())
    assert state_of(owner) == before


def test_a_path_of_the_machine_is_refused_where_a_file_is_that_is_not_ours_or_another_jobs(rig, work, tmp_path):
    theirs, there = tmp_path / "data" / "theirs.json", tmp_path / "data" / "there.json"
    theirs.parent.mkdir()
    theirs.write_text("the owner's")
    same = tmp_path / "data" / "same.json"
    same.write_text("of a")
    stay, read = ("sleep", "600"), ("cat", str(there))

    async def live():
        async with scene(rig) as sender:

            async def start(worker, argv, name, *more):
                mounts = {str(path): str(work / f"{name}.json") for path in (there, *more)}
                await sender.start(worker, argv, cwd=str(work), mounts=mounts)

            await start("job-1.1.0", stay, "a", theirs)
            down = await sender.next(WorkerDown, worker_id="job-1.1.0")
            assert (down.code, theirs.read_text()) == (127, "the owner's")
            assert "theirs.json: something is there that did not come for a job" in down.error
            assert not there.exists(), "all or nothing"
            await start("job-2.1.0", stay, "a", same)
            await sender.next(WorkerUp, worker_id="job-2.1.0")
            await start("job-3.1.0", read, "b")
            down = await sender.next(WorkerDown, worker_id="job-3.1.0")
            assert "there.json: job-2, which runs on this node, has another file there" in down.error
            assert there.read_text() == "of a"
            await start("job-4.1.0", read, "a")  # the same file serves both
            assert (await sender.next(WorkerDown, worker_id="job-4.1.0")).code == 0
            sender.end("job-2.1.0")
            await sender.next(WorkerDown, worker_id="job-2.1.0")
            await start("job-3.1.1", read, "b")  # now it may
            assert (await sender.next(WorkerDown, worker_id="job-3.1.1")).code == 0
            await start("job-2.1.1", read, "a")  # looked at before each start
            assert (await sender.next(WorkerDown, worker_id="job-2.1.1")).code == 0
            assert [sender.log(name) for name in ("job-3.1.1", "job-2.1.1")] == ["of b", "of a"]

    asyncio.run(live())
    assert not there.exists(), "it went with the node"
    assert (theirs.read_text(), same.read_text()) == ("the owner's", "of a")


def test_what_an_agent_that_was_killed_has_left_is_deleted_with_its_record_but_not_what_changed(rig, work, tmp_path):
    there, edited = tmp_path / "there.json", tmp_path / "edited.json"

    async def live():
        async with scene(rig) as sender:
            mounts = {str(path): str(work / "a.json") for path in (there, edited)}
            await sender.start("job-1.1.0", ("true",), cwd=str(work), mounts=mounts)
            assert (await sender.next(WorkerDown)).code == 0
            edited.write_text("by its owner since")
            rig.kill("n")
            await until(lambda: not rig.left())

    asyncio.run(live())
    (register,) = rig.folder.rglob("outside.json")
    assert set(json.loads(register.read_text())) == {str(there), str(edited)}
    assert there.exists()
    records = Records(tmp_path / "nodes")
    kept: Path = records.path("n", "notice.files")
    register.parent.rename(kept)
    records.remove("n")
    assert not there.exists()
    assert not kept.exists()
    assert edited.read_text() == "by its owner since"
    sweep(kept, FILES, DISK)  # twice is as good as once
