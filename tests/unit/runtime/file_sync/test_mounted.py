"""A command with buckets as folders: filled before it, written back behind it and at its end, whatever that is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import boto3
import pytest

pytest.importorskip("obstore")

from obstore.store import MemoryStore

from sublet.errors import InvalidValue
from sublet.machine.objects import StoreFailed
from sublet.machine.remote import RemoteObjects, open_uri
from sublet.machine.rng import RNG
from sublet.runtime.agent.setups import dressed
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.file_sync import buckets, mounted
from sublet.runtime.file_sync.mirror import Mirror
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.files import Travel
from sublet.wire.messages import EXIT_LOST, StartWorker
from sublet_lab.world.machine import MemoryFiles
from tests.rigs import moto_bucket


class Store(RemoteObjects):
    """One bucket that every process of this test sees."""

    fails: StoreFailed | None = None

    def upload(self, key, path):
        if Store.fails is not None:
            raise Store.fails
        return super().upload(key, path)


@pytest.fixture
def store(monkeypatch, tmp_path):
    found = Store("s3://bucket", MemoryStore())
    found.put("in.txt", b"from the bucket")
    monkeypatch.setattr(Store, "fails", None)
    monkeypatch.setattr(mounted, "open_uri", lambda uri: found)
    monkeypatch.setattr(mounted, "LOOK_S", 0.02)
    monkeypatch.setattr(mounted, "REST", 0)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SUBLET_CONTROL_FD", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def run(tmp_path, text):
    return mounted.main(["s3://bucket", str(tmp_path / "data"), "--", "bash", "-c", f"cd {tmp_path}/data; {text}"])


def test_a_command_finds_the_bucket_and_what_it_writes_is_there_when_it_has_ended(store, tmp_path, capfd):
    assert run(tmp_path, "cat in.txt; mkdir out; echo done > out/x; exit 3") == 3
    assert store.get("out/x").data == b"done\n"
    said = capfd.readouterr().out
    assert "from the bucket" in said
    assert "1 files uploaded to s3://bucket at the end" in said


def test_what_is_quiet_is_in_the_bucket_while_the_command_goes_on(store, tmp_path):
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "gate")
    seen = []

    def watch():
        while not any(found.key == "early" for found in store.list()):
            threading.Event().wait(0.01)
        seen.append("while it ran")
        (tmp_path / "gate").write_text("go on")

    watching = threading.Thread(target=watch)
    watching.start()
    assert run(tmp_path, "echo 1 > early; read word < ../gate; echo $word > late") == 0
    watching.join()
    assert (seen, store.get("late").data) == (["while it ran"], b"go on\n")


def test_sigterm_is_the_commands_and_what_it_saves_then_is_there(store, tmp_path):
    text = "trap 'echo saved > state; exit 0' TERM; touch ready; while :; do sleep 0.05; done"

    def end():
        while not (tmp_path / "data" / "ready").exists():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end)
    ending.start()
    assert run(tmp_path, text) == 0
    ending.join()
    assert store.get("state").data == b"saved\n"
    assert run(tmp_path, "kill -9 $$") == -signal.SIGKILL


def test_a_signal_that_comes_while_the_command_starts_is_its_own_as_well(store, tmp_path, monkeypatch):
    started = subprocess.Popen

    def slowly(*words, **more):
        process = started(*words, **more)
        while not (tmp_path / "data" / "ready").exists():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)  # the command trains, and nobody has its number yet
        return process

    monkeypatch.setattr(mounted.subprocess, "Popen", slowly)
    text = "trap 'echo saved > state; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    assert run(tmp_path, text) == 0
    assert store.get("state").data == b"saved\n"


@pytest.mark.parametrize(("lasting", "code"), [(True, 1), (False, EXIT_LOST)])
def test_a_command_whose_files_are_not_in_the_bucket_has_not_succeeded(store, tmp_path, monkeypatch, lasting, code):
    monkeypatch.setattr(mounted, "LAST_S", 0.0)
    monkeypatch.setattr(mounted, "AGAIN_S", 0.01)
    Store.fails = StoreFailed("s3://bucket", "no answer", hint="wait", lasting=lasting)
    assert run(tmp_path, "echo x > y") == code
    Store.fails = None
    assert run(tmp_path, "test -e y") == 0
    assert store.get("y").data == b"x\n", "the next one on this node takes it there"


def test_a_folder_with_files_of_others_is_refused_and_the_command_never_runs(store, tmp_path, capfd):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own").write_text("x")
    assert run(tmp_path, "touch ran") == EXIT_LOST
    assert not (tmp_path / "data" / "ran").exists()
    assert "empty folder" in capfd.readouterr().out


def test_a_worker_with_kept_folders_is_started_through_them_and_python_is_that_of_its_path(
    store, tmp_path, monkeypatch
):
    order = StartWorker(worker_id="w", job_id="j", argv=("python", "x.py"))
    kept = dressed(order, Travel(kept={"/data": "s3://bucket"}))
    assert kept.argv[-5:] == ("s3://bucket", "/data", "--", "python", "x.py")
    assert dressed(order, Travel()) is order
    (tmp_path / "x.py").write_text("import sys; open('exe', 'w').write(sys.executable)")
    words = ["s3://bucket", str(tmp_path / "data"), "--", "python", str(tmp_path / "x.py")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    assert mounted.main(words) == 0
    assert (tmp_path / "exe").read_text() == sys.executable


def test_a_node_fills_kept_folders_by_their_index_and_the_order_names_them(tmp_path):
    facts = {"files": MemoryFiles(), "rng": RNG, "engine": None, "logs": None, "elsewhere": True}
    carrier = FileSync(tmp_path, **facts)
    spec = JobSpec(
        name="job",
        argv=("x",),
        cwd="/work",
        mounts={"/in": "s3://data/set", "/out": "s3://results"},
        kept_mounts=("/out",),
        setup="make",
    )
    travel = carrier.load(StartWorker(worker_id="w", job_id="j", argv=("x",)), spec).travel
    first, second, third = travel.setup.splitlines()
    assert first.endswith("bringing s3://data/set /in")
    assert second.endswith("mounted s3://results /out")
    assert (third, travel.kept) == ("make", {"/out": "s3://results"})


def answer(**facts):
    return {"bytes": 0, "objects": 0, "missing": False, "why": "", **facts}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"bytes": 300 << 30, "objects": 7}, "300.0 GiB in 7 objects"),
        ({"objects": 1_000_001}, "1,000,001 objects"),
        ({"why": "no such bucket", "missing": True}, "no such bucket"),
        ({}, "nothing is there"),
    ],
)
def test_a_bucket_that_no_node_could_have_is_refused_with_its_size_before_one_is_rented(facts, why):
    with pytest.raises(InvalidValue, match=why):
        buckets.judge({"/in": "s3://b/x"}, (), [answer(**facts)])


def test_what_is_written_to_must_be_seen_and_what_is_only_read_may_be_the_nodes_alone():
    away = answer(why="403 Forbidden")
    assert "cannot be seen" in buckets.judge({"/in": "s3://b"}, (), [away])[0]
    with pytest.raises(InvalidValue, match="403"):
        buckets.judge({"/in": "s3://b"}, ("/in",), [away])
    assert buckets.judge({"/in": "s3://b"}, ("/in",), [answer()]) == [], "a folder to write to may be empty"


def test_a_bucket_is_measured_and_made_where_the_job_names_a_new_one(monkeypatch, tmp_path):
    for name, value in moto_bucket.environment().items():
        monkeypatch.setenv(name, value)
    uri = moto_bucket.a_bucket("measured")
    (tmp_path / "x").write_bytes(b"x" * 1000)
    remote = open_uri(uri)
    tag = remote.upload("deep/x", tmp_path / "x")
    assert (remote.look("deep/x").tag, remote.list()[0].tag) == (tag, tag)
    assert buckets.measure(uri, make=False) == (1000, 1)
    assert buckets.measure(f"{uri}/deep/x", make=False) == (1000, 1)
    with pytest.raises(StoreFailed):
        buckets.measure("s3://nobody-has-this", make=False)
    assert buckets.measure("s3://nobody-has-this", make=True) == (0, 0)
    assert buckets.measure("s3://nobody-has-this", make=False) == (0, 0)
    with pytest.raises(StoreFailed, match="only those of s3"):
        buckets._make_bucket("gs://nobody-has-this")
    spec = JobSpec(name="job", argv=("x",), cwd=str(tmp_path), mounts={"/out": "s3://new-one"}, kept_mounts=("/out",))
    with pytest.raises(InvalidValue, match=r"no such bucket|NoSuchBucket|not exist"):
        asyncio.run(buckets.check_buckets(spec, make=True))
    new = replace(spec, new_mounts=("/out",))
    assert asyncio.run(buckets.check_buckets(new, make=False)) == []
    with pytest.raises(StoreFailed):
        buckets.measure("s3://new-one", make=False)
    assert asyncio.run(buckets.check_buckets(new, make=True)) == []
    assert buckets.measure("s3://new-one", make=False) == (0, 0)


def test_a_store_at_an_address_of_the_jobs_own_is_not_asked_and_that_is_noted(tmp_path):
    env = {"AWS_ENDPOINT_URL": "http://169.254.169.254"}
    spec = JobSpec(name="job", argv=("x",), cwd=str(tmp_path), env=env, mounts={"/o": "s3://b"}, kept_mounts=("/o",))
    (note,) = asyncio.run(buckets.check_buckets(spec, make=True))
    assert "which the controller does not ask" in note


@pytest.mark.parametrize("key", ["only/", "only/deep/empty/"])
def test_a_bucket_with_nothing_but_an_empty_folder_of_a_console_is_mounted_and_written_to(monkeypatch, tmp_path, key):
    for name, value in moto_bucket.environment().items():
        monkeypatch.setenv(name, value)
    uri = moto_bucket.a_bucket("only")
    client = boto3.client("s3", region_name=os.environ["AWS_REGION"])
    client.put_object(Bucket=moto_bucket.BUCKET, Key=key, Body=b"")
    try:
        spec = JobSpec(name="job", argv=("x",), cwd="/", mounts={"/out": uri}, kept_mounts=("/out",))
        assert asyncio.run(buckets.check_buckets(spec, make=False)) == []
        mirror, place = Mirror(open_uri(uri), tmp_path / "out", tmp_path / "index.json"), tmp_path / "out"
        assert mirror.pull() == mirror.pull() == 0
        assert (place / key.removeprefix("only/")).is_dir()
        assert mirror.push(last=True) == (0, 0, None)
        (place / key.removeprefix("only/") / "new.txt").write_text("new")
        assert mirror.push(last=True) == (1, 0, None)
        written = client.get_object(Bucket=moto_bucket.BUCKET, Key=f"{key}new.txt")["Body"].read()
        assert written == b"new"
        assert mirror.pull() == 0
    finally:
        found = client.list_objects_v2(Bucket=moto_bucket.BUCKET, Prefix="only/")["Contents"]
        for each in found:
            client.delete_object(Bucket=moto_bucket.BUCKET, Key=each["Key"])
