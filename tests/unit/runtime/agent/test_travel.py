"""A node that does not see the controller's disk: what it fetches, what its workers find, what comes back of them.

The agent is a real one. The controller is its part that sends files and keeps logs, over the shipped engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from sublet.machine.remote import open_uri
from sublet.runtime.file_sync.content import Content
from sublet.testing.rigs import LocalRig, until
from sublet.wire.files import Kept, Lacks, Part, Preparing, Printed
from sublet.wire.messages import EXIT_LOST, EndWorker, Hello, StartWorker, WorkerDown, WorkerUp
from tests.rigs import little_docker, moto_bucket
from tests.rigs.blind_node import scene

DATA = "".join(f"{number} of many lines\n" for number in range(20_000))  # three parts
SHOW = """
import json, os, pathlib
print(json.dumps({"cwd": os.getcwd(), "files": sorted(str(p) for p in pathlib.Path(".").rglob("*") if p.is_file()),
                  "runs": os.access("run.sh", os.X_OK), "read": pathlib.Path("data/a.txt").read_text()}), flush=True)
pathlib.Path("written.txt").write_text("by a worker")
"""


@pytest.fixture
def rig():
    here = LocalRig()
    yield here
    assert here.clean_up() == []


def open_in(env, uri):
    with patch.dict(os.environ, env):
        return open_uri(uri)


@pytest.fixture
def work(rig):
    folder = rig.folder / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "show.py").write_text(SHOW)
    (folder / "run.sh").write_text("#!/bin/sh\necho run\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "data" / "a.txt").write_text(DATA)
    return folder


def test_a_worker_runs_in_files_that_its_node_has_fetched_and_its_output_comes_back(rig, work):
    async def live():
        async with scene(rig) as sender:
            await sender.start("job-1.1.0", (sys.executable, f"{work}/show.py"), cwd=str(work))
            shutil.rmtree(work)  # what the controller holds is all there is
            down = await sender.next(WorkerDown)
            assert (down.code, down.error) == (0, "")
            seen = json.loads(sender.log("job-1.1.0"))
            assert seen["files"] == ["data/a.txt", "run.sh", "show.py"]
            assert seen["runs"]
            assert seen["read"] == DATA
            place = Path(seen["cwd"])
            assert place != work
            assert (place / "written.txt").exists()
            assert sender.all(Preparing, worker_id="job-1.1.0")

    asyncio.run(live())


def test_a_worker_in_a_container_finds_its_bucket_and_what_it_wrote_is_there_when_it_is_told_gone(
    rig, work, monkeypatch
):
    pytest.importorskip("obstore")
    if os.geteuid():
        pytest.skip("namespaces need root")
    little_docker.install(rig.folder / "docker", rig.folder / "bin", "ubuntu:20.04")
    monkeypatch.setenv("PATH", f"{rig.folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(rig.folder))
    env = {**moto_bucket.environment(), "HOME": str(rig.folder / "of the job")}
    bucket = open_in(env, moto_bucket.a_bucket("worn"))
    bucket.put("in.txt", b"from the bucket")
    place = str(rig.folder / "mounted")
    facts = {"mounts": {place: bucket.uri}, "kept_mounts": (place,), "image": "ubuntu:20.04", "sdk": False, "env": env}
    script = f"cat {place}/in.txt /made; cat /root/sky_workdir/data/a.txt | head -1 > {place}/out.txt; exit 4"

    async def live():
        async with scene(rig) as sender:
            await sender.start("job-1.1.0", ("bash", "-c", script), cwd=str(work), setup="echo made > /made", **facts)
            down = await sender.next(WorkerDown)
            assert down.code == 4, sender.log("job-1.1.0")
            assert bucket.get("out.txt").data == b"0 of many lines\n"
            await until(lambda: "from the bucketmade" in sender.log("job-1.1.0"))
            assert len(os.listdir(rig.folder / "docker" / "images")) == 2, "and what setup has made of it"  # noqa: PTH208 - of names

    asyncio.run(live())
    assert list((rig.folder / "docker" / "containers").iterdir()) == []
    assert [each.name for each in (rig.folder / "docker" / "images").iterdir()] == ["ubuntu_20.04"], (
        "its agent has left"
    )


def test_an_unchanged_folder_costs_less_than_a_kilobyte_and_a_changed_file_only_itself(rig, work):
    async def live():
        async with scene(rig) as sender:
            for number in range(2):
                await sender.start(f"job-1.1.{number}", ("true",), cwd=str(work))
                await sender.next(WorkerDown, worker_id=f"job-1.1.{number}")
                if number == 0:
                    assert sender.bytes_of(Part) > 10_000
                    sender.sent.clear()
                    sender.heard.clear()
            assert sender.bytes_of(StartWorker, Part, Kept) < 1000
            assert sender.all(Lacks) == []
            (work / "show.py").write_text("print('another')")
            await sender.start("job-1.1.2", ("true",), cwd=str(work))
            await sender.next(WorkerDown, worker_id="job-1.1.2")
            assert len([part for part in sender.sent if isinstance(part, Part)]) == 3  # root, manifest, file

    asyncio.run(live())


def test_a_node_that_sees_the_controllers_disk_fetches_nothing_and_works_where_the_user_does(rig, work):
    async def live():
        async with scene(rig, blind=False) as sender:
            await sender.start("job-1.1.0", (sys.executable, "show.py"), cwd=str(work))
            assert (await sender.next(WorkerDown)).code == 0
            assert json.loads(sender.log("job-1.1.0"))["cwd"] == str(work)
            assert sender.all(Lacks) == sender.all(Printed) == []

    asyncio.run(live())


def test_a_directory_of_the_nodes_own_is_worked_in_and_the_output_comes_back(rig):
    async def live():
        async with scene(rig) as sender:
            sender.carrier.packer = lambda *_, **__: ""  # there is no such directory at the controller
            await sender.start("job-1.1.0", ("pwd",), cwd="/usr/lib")
            assert (await sender.next(WorkerDown)).code == 0
            assert sender.log("job-1.1.0") == "/usr/lib\n"
            assert sender.all(Lacks) == []

    asyncio.run(live())


def test_a_worker_that_is_ended_while_its_files_come_never_begins(rig, work):
    async def live():
        async with scene(rig) as sender:
            sender.silent = True
            await sender.start("job-1.1.0", ("true",), cwd=str(work))
            await sender.next(Lacks)
            sender.send("n", EndWorker(worker_id="job-1.1.0"))
            assert (await sender.next(WorkerDown)).code == -9
            sender.silent = False
            await sender.start("job-1.1.1", ("true",), cwd=str(work))
            await sender.next(WorkerDown, worker_id="job-1.1.1")
            assert [up.worker_id for up in sender.all(WorkerUp)] == ["job-1.1.1"]

    asyncio.run(live())


def test_a_controller_that_comes_back_hears_of_workers_whose_files_are_on_their_way(rig, work):
    """Or it would start others, and these would begin beside them."""

    async def live():
        async with scene(rig) as sender:
            sender.silent = True
            await sender.start("job-1.1.0", ("true",), cwd=str(work))
            await sender.next(Lacks)
            await sender.engine.close()
            sender.silent = False
            await sender.engine.open(sender.hear)
            assert (await sender.next(WorkerDown)).code == 0
            assert sender.all(Hello)[-1].workers == {"job-1.1.0": "job-1"}

    asyncio.run(live())


def test_files_that_the_controller_has_lost_cost_a_start_and_not_the_node(rig, work):
    async def live():
        async with scene(rig) as sender:
            content = sender.carrier.content
            await sender.start("job-1.1.0", ("true",), cwd=str(work))
            for path in content.folder.iterdir():
                path.unlink()
            down = await sender.next(WorkerDown)
            assert (down.code, down.error) == (EXIT_LOST, "cannot start: its files are no longer there")
            sender.carrier.content = Content(content.folder)
            await sender.start("job-1.1.1", ("true",), cwd=str(work))
            assert (await sender.next(WorkerDown, worker_id="job-1.1.1")).code == 0

    asyncio.run(live())


def test_setup_runs_once_before_the_workers_of_a_node_and_its_output_is_in_the_log(rig, work):
    async def live():
        async with scene(rig) as sender:
            facts = {"cwd": str(work), "setup": "echo setting up; echo x >> ran"}
            for number in range(2):
                await sender.start(f"job-1.1.{number}", ("cat", "ran"), **facts)
            for number in range(2):
                assert (await sender.next(WorkerDown, worker_id=f"job-1.1.{number}")).code == 0
            assert sender.log("job-1.1.0") + sender.log("job-1.1.1") == "setting up\nx\nx\n"

    asyncio.run(live())


def test_a_setup_that_fails_is_told_with_its_last_lines_and_run_again_for_the_next(rig, work):
    async def live():
        async with scene(rig, blind=False) as sender:
            facts = {"cwd": str(work), "setup": "echo no such wheel; test -e mended"}
            await sender.start("job-1.1.0", ("true",), **facts)
            down = await sender.next(WorkerDown)
            assert (down.code, down.error) == (1, "setup ended with exit code 1:\nno such wheel")
            (work / "mended").touch()
            await sender.start("job-1.1.1", ("true",), **facts)
            assert (await sender.next(WorkerDown, worker_id="job-1.1.1")).code == 0

    asyncio.run(live())


def test_a_key_that_only_its_owner_may_read_is_so_on_the_node(rig, work):
    (work / "key").write_text("secret")
    (work / "key").chmod(0o600)

    async def live():
        async with scene(rig) as sender:
            argv = ("stat", "-c", "%a", "key", "in/key", "run.sh", "show.py")
            await sender.start("job-1.1.0", argv, cwd=str(work), mounts={"in/key": str(work / "key")})
            assert (await sender.next(WorkerDown)).code == 0
            assert sender.log("job-1.1.0").split() == ["600", "600", "755", "644"]

    asyncio.run(live())


def test_mounts_are_found_where_they_were_asked_for(rig, work):
    async def live():
        async with scene(rig) as sender:
            there = rig.folder / "elsewhere" / "a.txt"
            mounts = {"in/b.txt": str(work / "data" / "a.txt"), str(there): str(work / "run.sh")}
            await sender.start("job-1.1.0", ("wc", "-c", "in/b.txt"), cwd=str(work), mounts=mounts)
            assert (await sender.next(WorkerDown)).code == 0
            assert sender.log("job-1.1.0") == f"{len(DATA)} in/b.txt\n"
            assert there.read_text() == (work / "run.sh").read_text()

    asyncio.run(live())
