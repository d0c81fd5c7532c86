"""A job in containers: what is inside, what ends them, and that nothing is left, over a stand-in for docker."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sublet.runtime.agent import processes
from sublet.runtime.agent.setups import dressed, preparing_text
from sublet.runtime.agent.worker import LIFE, Watch
from sublet.runtime.file_sync import contained, records
from sublet.runtime.file_sync.contained import ContainerFacts
from sublet.wire.files import Travel
from sublet.wire.messages import StartWorker
from tests.rigs import little_docker

SECRET = "it's\nsecret"  # noqa: S105 - it is
PATIENCE_S = 120.0
DOCKER = shutil.which("docker")


@pytest.fixture
def home(tmp_path, monkeypatch):
    if os.geteuid():
        pytest.skip("namespaces need root")
    little_docker.install(tmp_path / "docker", tmp_path / "bin", "ubuntu:20.04")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOKEN", SECRET)
    (tmp_path / "work").mkdir()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)
    left = names(tmp_path / "docker" / "containers")
    for name in left:
        contained._call("docker", ["rm", "--force", name])
    assert left == []


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def facts(home, **changes):
    me = processes.look(os.getpid())
    here = {"agent": me.pid, "born": me.start, "cwd": str(home / "work"), "names": ("TOKEN",), "name": "job-1.w0"}
    return ContainerFacts(image="ubuntu:20.04", **(here | changes))


def eventually(condition):
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.02)


def told(home):
    return [json.loads(line) for line in (home / "docker" / "told").read_text().splitlines()]


def test_workers_run_in_what_the_setup_has_made_of_the_image(home, capfd):
    job = facts(home, inside='mkdir -p /opt; echo "set up with $TOKEN" > /opt/made', seen=(str(home / "data"),))
    assert contained.main([job.to_word(), "prepare"]) == 0
    script = f'cat /opt/made; echo "$PWD $TOKEN" > out; echo x > {home}/data/y; ls {home}; exit 7'
    assert contained.main([job.to_word(), "run", "bash", "-c", script]) == 7
    assert (home / "work" / "out").read_text() == f"{home}/work {SECRET}\n"
    assert (home / "data" / "y").read_text() == "x\n"
    said = capfd.readouterr().out
    assert f"set up with {SECRET}" in said
    assert said.split()[-2:] == ["data", "work"], "of the machine it sees what it was given, and no more"
    assert not Path("/opt/made").exists()
    assert SECRET not in str(told(home))
    assert "secret" not in str(told(home))
    (left,) = records.records()
    assert (left.is_image, left.name) == (True, job.prepared), "the image, for the next worker"
    assert [path.suffix for path in records.folder().iterdir()] == [".json"], "no file with variables"
    assert contained.sweep() == 0, "its agent lives"
    assert contained.sweep(os.getpid()) == 1
    assert (list(records.records()), names(home / "docker" / "images")) == ([], ["ubuntu_20.04"])


def test_sigterm_reaches_the_command_and_a_worker_that_is_killed_leaves_no_container(home):
    script = f"trap 'echo saved > {home}/work/state; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    words = [sys.executable, "-P", "-m", "sublet.runtime.file_sync.contained", facts(home).to_word(), "run"]
    ready = home / "work" / "ready"
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -9)):
        ready.unlink(missing_ok=True)
        worker = subprocess.Popen([*words, "bash", "-c", script], process_group=0)
        eventually(ready.exists)
        (os.kill if number == signal.SIGTERM else os.killpg)(worker.pid, number)
        assert worker.wait() == code
        eventually(lambda: not list(records.records()))
        assert names(home / "docker" / "containers") == []
    assert (home / "work" / "state").read_text() == "saved\n"
    assert list(records.folder().iterdir()) == []


def test_what_an_agent_that_died_has_left_is_removed_and_nothing_of_one_that_lives(home):
    records.folder().mkdir(parents=True)
    for name in ("dead", "lives"):
        (home / "docker" / "containers" / name).mkdir()
    me = processes.look(os.getpid())
    records.Record.of_container("docker", "dead", me.pid, me.start + 1).write()
    records.Record.of_container("docker", "lives", me.pid, me.start).write()
    assert contained.sweep() == 1
    assert names(home / "docker" / "containers") == ["lives"]
    assert contained.main(["sweep", str(me.pid)]) == 0


def test_a_node_that_runs_no_containers_says_so_before_anything_runs(home, monkeypatch, capfd):
    (home / "bin" / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2; exit 1\n")
    assert contained.main([facts(home).to_word(), "run", "touch", str(home / "work" / "x")]) == contained.NONE_HERE
    assert "docker does not answer: Cannot connect to the daemon" in capfd.readouterr().out
    monkeypatch.setenv("PATH", str(home / "none"))
    assert contained.main([facts(home).to_word(), "prepare"]) == contained.NONE_HERE
    assert "neither docker nor podman" in capfd.readouterr().out
    assert not (home / "work" / "x").exists()


def test_an_image_that_is_nowhere_ends_the_preparation(home, capfd):
    assert contained.main([facts(home, names=()).to_word().replace("ubuntu", "nowhere"), "prepare"]) == 1
    assert "nowhere:20.04 cannot be had" in capfd.readouterr().out


def test_a_worker_sees_its_gpus_and_no_others(home, monkeypatch, tmp_path):
    monkeypatch.setattr(contained, "GPUS", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    words = {
        name: contained.ContainerEngine(name).words(facts(home), "i", ("x",), tmp_path / "env")
        for name in contained.ENGINES
    }
    at = words["docker"].index("--gpus")
    assert words["docker"][at + 1] == '"device=GPU-a,GPU-b"'
    assert words["podman"][2:6] == ["--device", "nvidia.com/gpu=GPU-a", "--device", "nvidia.com/gpu=GPU-b"]
    assert "--gpus" not in words["podman"]


@pytest.mark.skipif(DOCKER is None, reason="docker's own client is not installed")
def test_dockers_own_client_understands_every_option(tmp_path):
    some = ContainerFacts(image="ubuntu:20.04", cwd="/w", seen=("/a", "~/b"), name="w0")
    for words in (
        contained.run_words(some, some.image, ("bash", "-c", "x"), env_file=tmp_path / "env", visible="0,1"),
        ["rm", "--force", "x"],
        ["rmi", "--force", "x"],
        ["ps", "--quiet"],
        ["pull", "--quiet", "x"],
        ["image", "inspect", "x"],
        ["inspect", "--format", "{{.State.Pid}}", "x"],
        ["commit", "x", "sublet-setup:1-2-3"],
    ):
        done = subprocess.run(
            [DOCKER, "--host", f"unix://{tmp_path}/none", *words], capture_output=True, text=True, check=False
        )
        assert "annot connect" in done.stderr, (words, done.stderr)


def test_an_order_is_run_through_its_container_within_its_buckets(home):
    order = StartWorker(worker_id="job-1.w0", job_id="job-1", argv=("bash", "-c", "x"), cwd="/w", env={"A": "1"})
    travel = Travel(image="ubuntu:20.04", inside="make", setup="bring", seen=("/data",), kept={"/data": "s3://b"})
    worn = dressed(order, travel)
    at = worn.argv.index("--")
    assert worn.argv[at - 2 : at] == ("s3://b", "/data")
    inner = ContainerFacts.from_word(worn.argv[at + 5])
    assert (inner.seen, inner.names, worn.argv[at + 6 :]) == (("/data",), ("A",), ("run", "bash", "-c", "x"))
    assert worn.env[LIFE].endswith("job-1.w0.pid")
    first, second = preparing_text(order, travel).splitlines()
    assert first == "bring"
    assert second.endswith("prepare")
    assert dressed(order, Travel()) is order


def test_the_time_of_processes_in_a_container_is_a_sign_of_life(tmp_path):
    (tmp_path / "pid").write_text("77")
    watch = Watch("w", 5, "", {LIFE: str(tmp_path / "pid")}, 0.0)
    assert watch.look(5.0, {1: [(5, 1), (77, 900)]}).quiet_s == 0.0
    assert watch.look(10.0, {1: [(5, 1), (77, 900)]}).quiet_s == 5.0
    assert watch.look(15.0, {1: [(5, 1), (77, 990)], 77: [(78, 1)]}).quiet_s == 0.0


def test_what_was_brought_below_the_jobs_home_is_below_that_of_the_image(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/root/nodes/home/job-1")
    some = ContainerFacts(image="ubuntu", cwd="/root/nodes/work/job-1", seen=("~/in/key", "/data"))
    words = contained.run_words(some, some.image, ("true",), env_file=tmp_path / "env", visible=None)
    volumes = {after for word, after in itertools.pairwise(words) if word == "--volume"}
    assert volumes >= {
        "/root/nodes/home/job-1/in/key:/root/in/key",
        "/data:/data",
        "/root/nodes/work/job-1:/root/nodes/work/job-1",
        "/root/nodes/work/job-1:/root/sky_workdir",
    }
