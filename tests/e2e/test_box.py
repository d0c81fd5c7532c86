"""Rented hosts that share nothing: a job forms between them over certificates, and trains on when one is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cryptography")

from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings
from sublet.testing.box.claim import NoBox
from sublet.testing.box.hypervisor import Box
from sublet.testing.box.image import Image
from sublet.testing.box.renting import IMAGE, KIND, write_config

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 120.0
STEPS = 400
SCRIPT = f"""
import time
import torch
from torch import nn
from torch.utils.data import TensorDataset
from sublet import train

x = torch.randn({STEPS * 4}, 4, generator=torch.Generator().manual_seed(0))
model, world = nn.Linear(4, 1), 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with train.session(model, optimizer, TensorDataset(x, x.sum(1)), global_batch=4) as s:
    for inputs, targets in s.batches(epochs=1):
        if s.world != world:
            print(s.rank, "of", (world := s.world), flush=True)
        time.sleep(0.005)
        s.step(((model(inputs).squeeze(1) - targets) ** 2).mean())
"""
LOOK = """
import json, os, socket, sys, urllib.request as web
url = "http://169.254.169.254/latest/"
ask = web.Request(url + "api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
session = {"X-aws-ec2-metadata-token": web.urlopen(ask).read().decode()}
get = lambda path, headers=session: web.urlopen(web.Request(url + path, headers=headers)).read().decode()
def no(path, headers=session):
    try: return get(path, headers)
    except web.HTTPError as error: return error.code
print(json.dumps({
    "name": socket.gethostname(), "address": get("meta-data/local-ipv4"), "user data": get("user-data"),
    "without a session": no("user-data", {}), "no notice": no("meta-data/spot/instance-action"),
    "sees": [path for path in sys.argv[1:] if os.path.exists(path)],
    "writes": os.access(sys.prefix, os.W_OK), "pids": sum(name.isdigit() for name in os.listdir("/proc")),
}))
"""


@pytest.fixture(scope="module")
def box():
    try:
        here = Box(Image(env={"OMP_NUM_THREADS": "1"}))
    except NoBox as error:
        pytest.skip(str(error))
    with here:
        yield here
        assert here.troubles == []


def started(box, user_data):
    """An instance of nobody's controller."""
    tags = [{"Key": "sublet:server", "Value": "by hand"}]
    of = box.cloud.client("ec2").run_instances(
        ImageId=IMAGE,
        InstanceType=KIND,
        MinCount=1,
        MaxCount=1,
        UserData=user_data,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    return of["Instances"][0]["InstanceId"]


def state_of(box, instance_id):
    rows = box.cloud.client("ec2").describe_instances(InstanceIds=[instance_id])
    return rows["Reservations"][0]["Instances"][0]["State"]["Name"]


def eventually(condition):
    end_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end_s, "it never came true"
        time.sleep(0.05)
    return found


def test_a_host_has_nothing_of_this_machine_but_its_image_and_ends_when_it_shuts_down(box, tmp_path):
    user_data = "echo booted > /tmp/mark\nwhile [ ! -e /tmp/off ]; do sleep 0.1; done\nshutdown -h now\n"
    instance_id = started(box, user_data)
    (host,) = box.wait_for(1)
    eventually(lambda: host.machine.read("/tmp/mark"))  # noqa: S108 - of the host
    assert not Path("/tmp/mark").exists()  # noqa: S108
    answer = host.machine.run(sys.executable, "-c", LOOK, str(tmp_path), str(Path(__file__)), str(Path.cwd() / "tests"))
    seen = json.loads(answer.stdout)
    assert 3 <= seen.pop("pids") < 10  # pid 1 and its helpers, the user data, and this
    assert seen == {
        "name": f"ip-{host.address.replace('.', '-')}",
        "address": host.address,
        "user data": user_data,
        "without a session": 401,
        "no notice": 404,
        "sees": [],
        "writes": False,
    }
    host.notice(lead_s=120.0)
    action = json.loads(host.metadata.facts["meta-data/spot/instance-action"])
    assert action["action"] == "terminate"
    assert host.machine.is_on()
    host.machine.run("touch", "/tmp/off")  # noqa: S108 - of the host
    eventually(lambda: state_of(box, instance_id) == "terminated")
    assert box.hosts() == []


def test_nothing_comes_through_an_unplugged_cable_until_it_is_plugged_in_again(box):
    instance_id = started(box, "true\n")
    (host,) = box.wait_for(1)
    with socket.create_server((box.address, 0)) as door:
        dial = f"import socket; socket.create_connection(('{box.address}', {door.getsockname()[1]}), 0.2)"
        reached = lambda: host.machine.run(sys.executable, "-c", dial).returncode == 0  # noqa: E731
        eventually(reached)
        host.unplug()
        assert not reached()
        host.plug_in()
        eventually(reached)
    box.cut_off_all()
    assert (box.hosts(), state_of(box, instance_id)) == ([], "terminated")


def test_a_job_on_two_hosts_that_share_nothing_loses_one_and_trains_to_the_end(box, tmp_path, monkeypatch):
    for name, value in box.account.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    write_config(tmp_path / "state", box, port, {"preload": ["torch", "sublet.train.loop"]})
    settings = Settings(state_dir=str(tmp_path / "state"), provider="aws", policy="max-speedup", most_nodes=2)
    (work := tmp_path / "work").mkdir()
    (work / "train.py").write_text(SCRIPT, encoding="utf-8")  # here alone: it travels, and what it prints comes back
    facts = {"name": "job", "argv": ("python", "train.py"), "cwd": str(work), "setup": "echo set up in $PWD"}
    view, lost = asyncio.run(_trained(box, settings, JobSpec(**facts, min_workers=1, max_workers=2)))
    logs = [path.read_text() for path in (tmp_path / "state" / "jobs" / "job-1" / "logs").glob("*.log")]
    assert {text.count("set up in") for text in logs} == {1}, logs
    assert any("of 2" in text for text in logs), logs
    assert (view["phase"], view["step"], view["failures_infra"]) == ("finished", STEPS, 0), view
    assert lost
    assert (view["preemptions_unnoticed"], view["steps_lost"]) == (1, 0)  # the other one had it all
    assert box.wait_for(0) == []


async def _trained(box, settings, spec):
    """The job as it ended, and the node that was cut off in its middle."""
    api = controller_from(settings)
    running = asyncio.create_task(api.run())
    try:
        await api.started()
        await api.submit(spec)
        end_s, lost = time.monotonic() + PATIENCE_S, ""
        while (view := await api.job("job-1"))["phase"] not in ("finished", "failed"):
            assert time.monotonic() < end_s, view
            if view["workers"] == 2 and view["step"] > 0 and not lost:
                host = box.host_of(view["node_ids"][0])
                lost = host.node_id
                await asyncio.to_thread(host.cut_off)
            await asyncio.sleep(0.05)
    finally:
        await api.shutdown(end_jobs=True)
        await asyncio.gather(running, return_exceptions=True)
    return view, lost
