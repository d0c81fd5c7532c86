"""All of it at once: `sublet up --provider aws` rents from a moto server, and machines boot from their user data.

What EC2's hypervisors do is done here by processes: a new instance runs its script at once, one that is ended is gone
with all that ran on it, and one that shuts itself down is ended.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sublet.runtime.agent import processes
from sublet.runtime.store import Store
from tests.rigs.moto_cloud import ACCOUNT, IMAGE, KIND, REGION, account, instances, moto, tag

pytestmark = pytest.mark.timeout(120)
HELLO = "import time\nfor _ in range(20):\n    time.sleep(0.1)\nprint('hello from a rented machine')\n"


class Hypervisor(threading.Thread):
    """Gives every instance of the account processes of its own, in a folder of its own."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.over, self.booted = folder, threading.Event(), {}
        tools = folder / "bin"
        tools.mkdir(parents=True)
        for name in ("shutdown", "poweroff"):
            (tools / name).write_text('#!/bin/sh\ntouch "$PWD/ended"\n', encoding="utf-8")
            (tools / name).chmod(0o755)
        self.path = f"{tools}:{os.environ['PATH']}"

    def run(self):
        while not self.over.wait(0.2):
            self.look()

    def look(self):
        for page in account().get_paginator("describe_instances").paginate():
            for row in (row for reservation in page["Reservations"] for row in reservation["Instances"]):
                ours = any(tag["Key"] == "sublet:server" for tag in row.get("Tags", ()))
                alive, known = row["State"]["Name"] in ("pending", "running"), row["InstanceId"] in self.booted
                if ours and alive and not known:
                    self.boot(row["InstanceId"])
                elif known and not alive:
                    self.cut(row["InstanceId"])
                elif known and (self.folder / row["InstanceId"] / "ended").exists():
                    account().terminate_instances(InstanceIds=[row["InstanceId"]])

    def boot(self, instance_id):
        answer = account().describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
        home = self.folder / instance_id
        home.mkdir()
        script = home / "user-data.sh"
        script.write_bytes(b64decode(answer["UserData"]["Value"]))
        env = {**os.environ, "PATH": self.path, "SUBLET_RUN_DIR": str(home)}
        self.booted[instance_id] = subprocess.Popen(["bash", str(script)], env=env, start_new_session=True)

    def cut(self, instance_id):
        home = self.folder / instance_id
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                if (proc / "cwd").readlink() == home and (found := processes.look(int(proc.name))):
                    processes.kill_instance(found.session, processes.look(found.session).start)
                    os.kill(found.pid, 9)
            except (OSError, AttributeError):
                continue
        self.booted[instance_id].wait()


@pytest.fixture
def machines(tmp_path, monkeypatch):
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    here = Hypervisor(tmp_path / "machines")
    here.start()
    yield here
    here.over.set()
    here.join()
    for instance_id in here.booted:
        here.cut(instance_id)


@pytest.fixture
def state(tmp_path, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "aws.toml").write_text(
        f"""
regions = ["{REGION}"]
instance_types = ["{KIND}"]
markets = ["on-demand"]   # moto's spot price cannot be believed
image = "{IMAGE}"
controller = "tcp:127.0.0.1:{port}"
agents_port = {port}
install = ""
python = "{sys.executable}"
preload = []
metadata_url = ""
boot_s = 10
lease_s = 30
endpoint_url = "{moto()}"
""",
        encoding="utf-8",
    )
    monkeypatch.setenv("SUBLET_STATE", str(folder))
    monkeypatch.delenv("SUBLET_AWS", raising=False)
    return folder


def test_a_job_runs_on_rented_machines_and_nothing_is_left(sublet, state, machines, tmp_path):
    (tmp_path / "hello.py").write_text(HELLO, encoding="utf-8")
    job_file = tmp_path / "hello.yaml"
    job_file.write_text(f"name: hello\nrun: {sys.executable} hello.py\nelastic: {{workers: 1}}\n", encoding="utf-8")
    answer = sublet("up", "--provider", "aws", "--purse", "5", "--nodes", "2")
    assert answer.code == 0, answer.err + (state / "controller.log").read_text(encoding="utf-8")
    try:
        job_id = sublet("submit", job_file, "-o", "json").json["job_id"]
        deadline = time.monotonic() + 120.0
        while (row := _job(sublet, job_id))["phase"] not in ("finished", "failed"):
            assert time.monotonic() < deadline, (row, (state / "controller.log").read_text(encoding="utf-8")[-3000:])
            time.sleep(0.3)
        assert row["phase"] == "finished", row
        assert "hello from a rented machine" in sublet("logs", job_id).out
    finally:
        answer = sublet("down")
    assert answer.code == 0, answer.err
    store = Store(state / "log.sqlite")
    rows, log = instances(store.get("server_id")), [json.loads(line)["event"] for line in store.lines()]
    store.close()
    assert rows
    assert {row["State"]["Name"] for row in rows} == {"terminated"}
    billed_s = {e["node_id"]: e["billed_to_s"] - e["billed_from_s"] for e in log if e["type"] == "NodeReleased"}
    assert billed_s == pytest.approx({tag(row, "node"): _ran_s(row) for row in rows}, abs=0.001)
    assert list((state / "aws" / "nodes").glob("*.json")) == []
    assert "nothing of ours" in sublet("gc").out


def _ran_s(row):
    """By EC2's own record."""
    ended = row["StateTransitionReason"].removeprefix("User initiated (").removesuffix(" UTC)")
    return (datetime.fromisoformat(ended).replace(tzinfo=UTC) - row["LaunchTime"]).total_seconds()


def _job(sublet, job_id):
    return next(row for row in sublet("ps", "--all", "-o", "json").json["jobs"] if row["id"] == job_id)
