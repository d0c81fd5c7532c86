"""A laptop, an account, and three commands: the controller lives on a rented anchor, and nothing is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("cryptography")

from sublet.runtime.store import Store
from sublet_lab.box.claim import NoBox
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from sublet_lab.box.renting import write_config
from sublet_lab.box.sshd import service

pytestmark = pytest.mark.timeout(600)

PORT = 7070  # of a host of its own
JOB = """
name: hello
num_nodes: 2
workdir: .
resources:
  accelerators: T4:1
run: |
  cat greeting
  echo "on $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES"
"""


@pytest.fixture
def box():
    try:
        here = Box(Image(env={"OMP_NUM_THREADS": "1"}, files=service(), sublet=False))
    except NoBox as error:
        pytest.skip(str(error))
    with here:
        yield here
        assert here.troubles == []


@pytest.fixture
def sublet(box, tmp_path):
    state = tmp_path / "state"
    box.cloud.client("iam").create_instance_profile(InstanceProfileName="role")
    anchor = {"anchor_type": "t3.small", "anchor_user": "root", "anchor_subnet": box.subnet(), "anchor_profile": "role"}
    write_config(state, box, PORT, {**anchor, "controller": "", "preload": []})
    env = {**os.environ, **box.account, "SUBLET_STATE": str(state)}

    def run(*words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "sublet", *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}{_logs(box)}"
        return done.stderr if code else done.stdout

    run.state = state
    return run


def _logs(box):
    """What the hosts say of it."""
    paths = ["/var/log/user-data.log", "/var/log/service.log", "/root/.local/state/sublet/watchdog.log"]
    paths += ["/root/.local/state/sublet/controller.log", "/run/sublet/fetch.log", "/run/sublet/agent.log"]
    return "".join(
        f"\n== {host.node_id} {path}\n{host.machine.read(path)[-3000:]}" for host in box.hosts() for path in paths
    )


def _alive(box):
    rows = box.cloud.client("ec2").describe_instances()["Reservations"]
    return [row for group in rows for row in group["Instances"] if row["State"]["Name"] != "terminated"]


def test_from_a_laptop_to_two_rented_nodes_and_back(box, sublet, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "job.yaml").write_text(JOB, encoding="utf-8")
    (tmp_path / "work" / "greeting").write_text("from the laptop\n", encoding="utf-8")
    told = sublet("up", "--on", "aws", "--purse", "20", "--nodes", "2", "--policy", "max-speedup")
    assert "you may close the lid" in told
    assert [row["InstanceType"] for row in _alive(box)] == ["t3.small"]
    assert "anchor" in sublet("up", code=2)  # a controller here would be a second one
    told = sublet("submit", "work/job.yaml", "--follow")  # until it has ended
    assert "from the laptop" in told
    logs = sublet("logs", "hello-1", "--all")
    assert logs.count("from the laptop") == 2, logs
    assert "on 1 of 2" in logs
    assert 0 < json.loads(sublet("cost", "--json"))["usd_besides"] < 0.02
    anchor = next(host for host in box.hosts() if host.node_id == "anchor")
    assert anchor.machine.read("/root/.local/state/sublet/credentials.env") == ""
    assert "anchor has ended" in sublet("down")
    assert _alive(box) == []
    assert not (sublet.state / "anchor" / "record.json").exists()
    store = Store(sublet.state / "log.sqlite")
    assert [job_id for job_id, _, _ in store.jobs()] == ["hello-1"]  # its record has come home
    store.close()


STATE = "/root/.local/state/sublet"
ENDS = "for pid in $(pgrep -f 'sublet.runtime.controller_host.watchdog|sublet.api.main'); do kill -9 $pid; done"


def test_one_word_is_enough_after_a_reboot_and_one_that_cannot_live_says_why(box, sublet):
    sublet("up", "--on", "aws", "--purse", "20")
    anchor = box.host_of("anchor").machine
    anchor.run("bash", "-c", ENDS)  # with the machine: nobody has cleaned up
    assert anchor.read(f"{STATE}/controller.json")
    assert "you may close the lid" in sublet("up", "--on", "aws")
    assert json.loads(sublet("ps", "--json"))["jobs"] == []
    anchor.run("bash", "-c", ENDS)
    anchor.write(f"{STATE}/settings.json", "{")
    assert "settings.json" in sublet("up", "--on", "aws", code=1)
    assert "settings.json" in sublet("ps", code=75)
    assert "anchor has ended" in sublet("down")  # with all that it knew
    assert _alive(box) == []
