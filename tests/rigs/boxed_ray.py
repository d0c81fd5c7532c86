"""A Ray cluster whose machines share nothing: its head is here, its nodes are hosts of a box that have joined it."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.providers.ray.cluster import Cluster
from sublet.runtime.providers.ray.config import NodeKind
from sublet.runtime.providers.ray.provider import RayProvider, RayTerms
from sublet.testing.rigs import PATIENCE_S
from sublet_lab.box.claim import claim
from sublet_lab.box.image import Image
from sublet_lab.box.machine import Machine
from sublet_lab.box.network import Network

NODES = 2
PORT = 6399  # of the head
STORE_BYTES = 80_000_000  # the smallest that Ray takes without complaint
UP_S = 240.0  # for all to have joined
KIND = NodeKind(name="little", slots=1, cpus=1.0)
QUICK = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}  # not 15 s
ENV = {"RAY_memory_monitor_refresh_ms": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
_RIGS = itertools.count()


def _ray(*words):
    return [sys.executable, "-m", "ray.scripts.scripts", "start", *words, f"--object-store-memory={STORE_BYTES}"]


@functools.cache
def boxed_cluster():
    """For all tests of this process: the cluster, and its machines by their addresses. NoBox where none can be made."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    if ray.is_initialized():
        pytest.skip("this process is the driver of another Ray cluster: run this file by itself")
    here = claim()
    atexit.register(here.give_up)
    network = Network(here)
    network.build()
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # its sockets need a short path
    address = f"{network.address}:{PORT}"
    words = ["--head", f"--node-ip-address={network.address}", f"--port={PORT}", "--num-cpus=0", "--block"]
    words += ["--include-dashboard=false", f"--temp-dir={folder}", f"--system-config={json.dumps(QUICK)}"]
    with (folder / "head.log").open("ab") as log:
        head = subprocess.Popen(_ray(*words), stdout=log, stderr=log, start_new_session=True, env={**os.environ, **ENV})
    atexit.register(_end, head, folder)
    machines = {}
    for number in range(NODES):
        (place := here.folder / f"ray-{number}").mkdir()
        cable = network.cable()
        joins = _ray(f"--address={address}", f"--node-ip-address={cable.address}", "--num-cpus=1", "--block")
        again = f"until {shlex.join(joins)}; do sleep 1; done\n"  # the head may not be there yet
        machine = machines[cable.address] = Machine(cable, Image(env=ENV), place, again.encode())
        atexit.register(machine.cut_off)
    cluster, end_s = Cluster(address), time.monotonic() + UP_S
    while True:
        try:
            cluster.connect()
            if {node.host for node in cluster.look()} >= set(machines):
                return cluster, machines
            why = "not all have joined"
        except Exception as error:  # noqa: BLE001 - it is not up yet, whatever Ray raises then
            why = str(error)
        logs = [machine.read("/var/log/user-data.log")[-2000:] for machine in machines.values()]
        assert time.monotonic() < end_s, (why, logs, (folder / "head.log").read_text()[-2000:])
        time.sleep(0.5)


def _end(head, folder):
    import ray

    ray.shutdown()
    os.killpg(head.pid, signal.SIGKILL)  # its own session: all of the head
    head.wait()
    shutil.rmtree(folder, ignore_errors=True)


class BoxedRayRig:
    """What exists is what the provider has written down, and runs on the machine that it says."""

    offer_id = f"ray:{KIND.name}"

    def __init__(self):
        self.cluster, self.machines = boxed_cluster()
        self.folder = Path(tempfile.mkdtemp(prefix="sublet-boxed-ray-"))
        self.clock = Clock()
        self.namespace = f"boxed-{os.getpid()}-{next(_RIGS)}"
        self._seen = {}  # node -> machine, pid there, start

    def provider(self, *, supply=None):
        kind = NodeKind(name=KIND.name, slots=1, cpus=1.0, most=supply)
        facts = {"state_dir": self.folder, "clock": self.clock, "cluster": self.cluster, "kinds": (kind,)}
        address = "tcp:198.18.0.1:7070"  # no engine is there: providers are tested
        terms = RayTerms(address=address, namespace=self.namespace, preload=(), lease_s=30.0)
        return RayProvider(**facts, terms=terms)

    def left(self):
        hosts = {node.id: node.host for node in self.cluster.look()}
        for path in (self.folder / "ray-nodes").glob("*.json"):
            held = json.loads(path.read_text(encoding="utf-8"))
            if held["pid"] and (machine := self.machines.get(hosts.get(held["ray_node"]))) is not None:
                start = _start_of(machine, held["pid"])
                if start and held["node_id"] not in self._seen:
                    self._seen[held["node_id"]] = (machine, held["pid"], start)
        return sorted(name for name, (machine, pid, start) in self._seen.items() if _start_of(machine, pid) == start)

    def kill(self, node_id):
        assert node_id in self.left()
        machine, pid, _ = self._seen[node_id]
        machine.run("kill", "-KILL", str(pid))

    def clean_up(self):
        left = self.left()
        for node_id in left:
            self.kill(node_id)
        end_s = time.monotonic() + PATIENCE_S
        while any(node.free.get("CPU", 0.0) < node.total.get("CPU", 0.0) for node in self.cluster.look()):
            if time.monotonic() > end_s:
                return [*left, "a reservation at Ray"]
            time.sleep(0.05)
        shutil.rmtree(self.folder)
        return left


def _start_of(machine, pid):
    """When it began, as the machine's own /proc has it; None where it has ended."""
    facts = machine.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return facts[19] if len(facts) > 19 and facts[0] not in "ZX" else None
