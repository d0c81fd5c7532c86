"""Nobody but its owner may look into a state directory, whatever the umask and whoever made it."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
import torch

from sublet import plugins
from sublet.api.state import StateDir
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.private import private_folder
from sublet.runtime.providers.aws.instances import InstanceRecords
from sublet.runtime.store import Store
from sublet.train.checkpoint.checkpoints import Checkpoints
from sublet.train.checkpoint.commit import Directory
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer


def modes(folder):
    return {entry.name: entry.stat(follow_symlinks=False).st_mode & 0o777 for entry in os.scandir(folder)}


@pytest.fixture(autouse=True)
def _a_generous_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_store_is_readable_by_its_owner_alone(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.put("secret", "x")
    assert modes(tmp_path) == dict.fromkeys(("log.sqlite", "log.sqlite-shm", "log.sqlite-wal"), 0o600)
    store.close()


def test_a_store_that_others_could_read_is_closed_to_them_with_all_its_files(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.put("secret", "x")
    for name in modes(tmp_path):
        (tmp_path / name).chmod(0o644)
    again = Store(tmp_path / "log.sqlite")
    assert set(modes(tmp_path).values()) == {0o600}
    again.close()
    store.close()


def test_an_existing_state_directory_with_wider_modes_is_closed(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    for name in ("settings.json", "log.sqlite", "controller.log", "token"):
        (folder / name).write_text("")
    (folder / "jobs").mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / "agents.sock"))
        state = StateDir(folder)
        state.prepare()
        assert not state.in_use  # which makes the lock
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {name: mode for name, mode in modes(folder).items() if mode != 0o600} == {"jobs": 0o700}


def open_to_others(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.lstat().st_mode & 0o077)


def test_an_existing_state_directory_is_closed_at_every_level_and_what_a_link_is_to_is_left_alone(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "state"
    outside.write_text("")
    deep = folder / "jobs" / "j-1" / "checkpoints" / "step-4"
    deep.mkdir(parents=True)
    (deep / "tree.json").write_text("")
    (deep / "run.sh").touch(mode=0o755)
    (deep / "link").symlink_to(outside)
    private_folder(folder)
    assert open_to_others(folder) == [str((deep / "link").relative_to(folder))]
    assert (deep / "run.sh").stat().st_mode & 0o777 == 0o700
    assert outside.stat().st_mode & 0o777 == 0o644


def test_only_so_much_is_looked_at_when_a_state_directory_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("sublet.runtime.private.MOST_ENTRIES", 3)
    for name in "abcde":
        (tmp_path / name).write_text("")
    private_folder(tmp_path)
    assert len(open_to_others(tmp_path)) == 2


def test_the_folders_and_checkpoints_of_a_job_are_its_owners_alone(tmp_path):
    cloud = MemoryCloud([one_gpu_offer("spot")], Clock(speedup=60.0))
    own = tmp_path / "own" / "place"

    async def live():
        with api_over(cloud, tmp_path / "state", plugins.load("sublet.policies", "max-speedup")(), limits={}) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.submit(JobSpec(name="j", argv=("x",), cwd="/"))
            await api.submit(JobSpec(name="k", argv=("x",), cwd="/", checkpoint_dir=str(own)))
            await api.shutdown()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())
    save(tmp_path / "state" / "jobs" / "j-1" / "checkpoints")
    assert (tmp_path / "state" / "jobs" / "j-1" / "checkpoints" / "LATEST").exists()
    assert open_to_others(tmp_path / "state") == []
    save(own)
    assert {path.stat().st_mode & 0o777 for path in own.rglob("*")} == {0o644, 0o755}, (
        "the umask is for its owner to say"
    )


def save(folder):
    Directory(folder).announce(3)
    with Checkpoints(folder, writer="w", generation=3) as kept:
        kept.save(7, {"w": torch.arange(4)}, {})


def test_the_records_of_aws_are_its_owners_alone(tmp_path):
    InstanceRecords(tmp_path / "aws")
    assert open_to_others(tmp_path) == []
