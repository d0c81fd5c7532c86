"""What a steward hands to the processes that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

# As Ray does: devices are hidden from an actor after its process has begun.
HIDDEN = """
import json, os
from sublet.runtime.providers.ray.steward import _environment
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["OMP_NUM_THREADS"] = "1"
print(json.dumps(_environment("127.0.0.1")))
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
