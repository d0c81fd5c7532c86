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

from sublet.machine.files import FILES
from sublet.runtime.controller.files.checkpoints import Anchor
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings
from sublet_lab.box.claim import NoBox
from sublet_lab.box.hypervisor import Box
from sublet_lab.box.image import Image
from sublet_lab.box.renting import IMAGE, KIND, write_config

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("leftovers")]

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
        time.sleep(0.01)
        s.step(((model(inputs).squeeze(1) - targets) ** 2).mean())
"""
PLAIN = """
import os
import torch
import torch.distributed as dist

def refused(path):
    try:
        with open(path, "rb") as file:
            return not file.read(1)
    except PermissionError:
        return True

assert os.geteuid() > 0
run, agent = "/run/sublet/", os.getppid()
secrets = [run + "token", run + os.environ["SUBLET_NODE_ID"] + ".pem", f"/proc/{agent}/environ", f"/proc/{agent}/mem"]
assert all(map(refused, secrets)), [path for path in secrets if not refused(path)]

dist.init_process_group("gloo")
print("rank", dist.get_rank(), flush=True)
for _ in range(20):
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
assert int(total) == 3
assert os.environ["MASTER_ADDR"].startswith("198.18."), os.environ["MASTER_ADDR"]
found = [None, None]
dist.all_gather_object(found, (os.environ["SUBLET_HOST"], os.environ["MASTER_ADDR"]))
assert len({host for host, _ in found}) == 2, found
assert {meeting for _, meeting in found} == {found[0][0]}, "all meet at the host of rank 0"
if dist.get_rank() == 0:
    open(os.environ["SUBLET_CHECKPOINT_DIR"] + "/last.pt", "w").write("saved by rank 0")
dist.destroy_process_group()
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
        here = Box(Image(env={"OMP_NUM_THREADS": "1"}, sublet=False))
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


def _stays_open(line):
    """Nothing comes on it, not even its end."""
    line.settimeout(0.3)
    try:
        return bool(line.recv(1))
    except TimeoutError:
        return True
    finally:
        line.settimeout(PATIENCE_S)


def test_nothing_comes_through_an_unplugged_cable_until_it_is_plugged_in_again(box):
    instance_id = started(box, "true\n")
    (host,) = box.wait_for(1)
    with socket.create_server((box.address, 0)) as door:
        dial = f"import socket; line = socket.create_connection(('{box.address}', {door.getsockname()[1]}), 0.2)"
        reached = lambda: host.machine.run(sys.executable, "-c", dial).returncode == 0  # noqa: E731
        eventually(reached)
        host.unplug()
        assert not reached()
        host.plug_in()
        eventually(reached)
        line = host.machine.popen(sys.executable, "-c", f"{dial}; import time; time.sleep(600)")
        door.settimeout(PATIENCE_S)
        while not _stays_open(end := door.accept()[0]):  # one of those that only tried
            end.close()
        host.cut_off()
        line.communicate()
        assert _stays_open(end)  # its power failed: nobody said good-bye
        end.close()
    assert (box.hosts(), state_of(box, instance_id)) == ([], "terminated")


def test_jobs_on_two_hosts_that_share_nothing_form_and_one_trains_on_when_a_host_is_lost(box, tmp_path, monkeypatch):
    for name, value in box.account.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    write_config(
        tmp_path / "state", box, port, {"preload": ["torch", "sublet.train.sessions.copies"], "own_users": True}
    )
    settings = Settings(state_dir=str(tmp_path / "state"), provider="aws", policy="max-speedup", most_nodes=2)
    (tmp_path / "job").mkdir()
    for name, text in (("sdk", SCRIPT), ("plain", PLAIN)):
        (tmp_path / "job" / f"{name}.py").write_text(text, encoding="utf-8")
    plain, view = asyncio.run(_trained(box, settings, tmp_path / "job"))
    logs = {  # the folder is here alone: it travelled, was set up there, and what was printed has come back
        name: [path.read_text() for path in (tmp_path / "state" / "jobs" / f"{name}-1" / "logs").glob("*.log")]
        for name in ("plain", "sdk")
    }
    assert sorted(text.splitlines()[-1] for text in logs["plain"]) == ["rank 0", "rank 1"]
    assert {text.count("set up in") for text in logs["sdk"]} == {1}, logs
    assert any("of 2" in text for text in logs["sdk"]), logs
    assert (plain["phase"], plain["exit_code"], plain["failures_infra"]) == ("finished", 0, 0), plain
    assert (view["phase"], view["step"], view["failures_infra"]) == ("finished", STEPS, 0), view
    assert (view["preemptions_unnoticed"], view["steps_lost"]) == (1, 0), view  # the other one had it all
    assert box.wait_for(0) == []
    kept = {name: Anchor(tmp_path / "state" / "checkpoints" / f"{name}-1", FILES) for name in ("sdk", "plain")}
    assert kept["sdk"].head.newest.step == STEPS, "what they saved on hosts that are gone was carried here before"
    (entry,) = kept["plain"].entries(kept["plain"].head.newest)
    assert (entry.path, b"".join(kept["plain"].read(entry))) == ("last.pt", b"saved by rank 0")


async def _trained(box, settings, folder):
    """An unmodified script, and one with the SDK that loses a host in its middle; as they ended."""
    api = controller_from(settings)
    running = asyncio.create_task(api.run())
    end_s = time.monotonic() + 2 * PATIENCE_S

    async def until(job_id, *phases):
        while (view := await api.job(job_id))["phase"] not in (*phases, "finished", "failed"):
            assert time.monotonic() < end_s, view
            await asyncio.sleep(0.05)
        return view

    try:
        await api.started()
        await api.submit(_job(folder, "plain", sdk=False, min_workers=2))
        await until("plain-1", "running")  # so that it has both
        await api.submit(_job(folder, "sdk", sdk=True, min_workers=1, setup="echo set up in $PWD"))
        plain = await until("plain-1")
        while (view := await api.job("sdk-1"))["workers"] < 2 or not view["step"]:
            assert time.monotonic() < end_s, view
            assert view["phase"] != "finished", "it was over before it had both"
            await asyncio.sleep(0.05)
        await asyncio.to_thread(box.host_of(view["node_ids"][0]).cut_off)
        return plain, await until("sdk-1")
    finally:
        await api.shutdown(end_jobs=True)
        await asyncio.gather(running, return_exceptions=True)


def _job(folder, name, **facts):
    """Its folder is this machine's, and travels to the hosts."""
    return JobSpec(name=name, argv=("python", f"{name}.py"), cwd=str(folder), max_workers=2, **facts)
