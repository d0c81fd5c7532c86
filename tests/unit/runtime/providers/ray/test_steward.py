"""What a steward hands to the processes that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from sublet.runtime.agent import processes

# As Ray does: devices are hidden from an actor after its process has begun.
HIDDEN = """
import json, os
from sublet.runtime.providers.ray.steward import _environment
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["OMP_NUM_THREADS"] = "1"
print(json.dumps(_environment("127.0.0.1")))
"""
# A steward without Ray: starts a template, has it fork an agent, tells who they are, and waits.
STEWARD = """
import asyncio, json, os, sys
from pathlib import Path
from sublet.runtime.providers.local.nodes import TemplateForker
from sublet.runtime.providers.local.nodes import Nodes
from sublet.runtime.providers.local.records import NodeRecord, Records
from sublet.runtime.providers.ray.steward import _TiedTemplate

async def main(folder):
    template = _TiedTemplate((), folder / "template.log", os.environ)
    nodes = Nodes(Records(folder / "nodes"), TemplateForker(template), print)
    record = NodeRecord(node_id="n", offer_id="o", token="t", began_s=0.0)
    facts = {"node_id": "n", "token": "t", "address": f"unix:{folder}/none", "notice_file": "x", "log": f"{folder}/log"}
    born = await nodes.fork(record, facts)
    print(json.dumps([template.pid, born.pid]), flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


def environment(**began):
    env = {name: value for name, value in os.environ.items() if not name.endswith("VISIBLE_DEVICES")}
    env.pop("GLOO_SOCKET_IFNAME", None)
    told = subprocess.run([sys.executable, "-c", HIDDEN], env={**env, **began}, capture_output=True, check=True)
    return json.loads(told.stdout)


def test_workers_see_the_devices_that_rays_worker_began_with():
    assert environment(CUDA_VISIBLE_DEVICES="2,3")["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in environment()  # all of them


def test_workers_meet_at_the_address_of_their_node_and_not_where_its_name_leads():
    env = environment()
    assert (env["SUBLET_HOST"], env["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
    assert environment(GLOO_SOCKET_IFNAME="ib0")["GLOO_SOCKET_IFNAME"] == "ib0"  # the user knows better


def test_how_many_threads_a_worker_has_is_not_for_ray_to_say():
    assert "OMP_NUM_THREADS" not in environment()


def test_template_and_agent_end_when_the_steward_is_killed(tmp_path):
    steward = subprocess.Popen([sys.executable, "-c", STEWARD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        template, agent = json.loads(steward.stdout.readline())
        seen = [processes.look(pid) for pid in (template, agent)]
        assert all(seen)
        assert seen[1].session == agent  # a session of its own, which Ray would not end
    finally:
        os.kill(steward.pid, signal.SIGKILL)
        steward.wait()
        steward.stdout.close()
    ends_s = time.monotonic() + 120.0
    while any(processes.alive(process.pid, process.start) for process in seen):
        assert time.monotonic() < ends_s, "something outlives the steward"
        time.sleep(0.01)
