"""A Ray cluster on this machine to test on: a head and three small nodes, started once per process of the tests."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import logging
import os
import shutil
import signal
import socket
import time
import warnings

import pytest

from sublet.runtime.agent import processes
from sublet.runtime.engines.ray import RayEngine
from sublet.runtime.providers.ray.cluster import Cluster
from sublet.runtime.providers.ray.config import NodeKind
from sublet.runtime.providers.ray.provider import RayProvider, RayTerms
from sublet.runtime.providers.ray.steward import import_ray
from sublet.testing.rigs import PATIENCE_S, LocalRig, with_fields

NODES = 3
STORE_BYTES = 80_000_000  # the smallest that Ray takes without complaint
NAMESPACE = f"sublet-test-{os.getpid()}"
KIND = NodeKind(name="little", slots=1, cpus=1.0)


@functools.cache
def ray_cluster():
    """Ray's own cluster for tests; ended with this process."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    assert os.environ["RAY_memory_monitor_refresh_ms"] == "0", "as tests/conftest.py says"  # noqa: SIM112
    from ray.cluster_utils import Cluster as Nodes

    logging.getLogger("ray").setLevel(logging.ERROR)
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    head |= {"_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}}  # not 15 s
    nodes = Nodes(initialize_head=True, head_node_args=head)
    atexit.register(_end, nodes)
    for _ in range(NODES):
        add_node(nodes)
    nodes.wait_for_nodes()
    os.environ["RAY_ADDRESS"] = nodes.address  # for a controller in this process
    cluster = Cluster(nodes.address)
    cluster.connect()
    from ray._private import worker

    worker._worker_logs_enabled = False  # else Ray prints on standard output while other tests read it
    return nodes, cluster


def add_node(nodes):
    """One more machine, with one CPU."""
    return nodes.add_node(wait=False, num_cpus=1, object_store_memory=STORE_BYTES)


def _end(nodes):
    import_ray().shutdown()
    nodes.shutdown()


def free_port(host):
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


class RayRig(LocalRig):
    """Three nodes with one CPU each. What exists is what the stewards there have written down, and /proc."""

    offer_id = f"ray:{KIND.name}"

    def __init__(self, folder=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.nodes, self.cluster = ray_cluster()
        super().__init__(folder)
        self.host = self.cluster.host
        self.address = f"tcp:{self.host}:{free_port(self.host)}"

    def provider(self, *, supply=None, **knobs):
        kind = NodeKind(name=KIND.name, slots=1, cpus=1.0, most=supply)
        facts = {"state_dir": self.folder, "clock": self.clock, "cluster": self.cluster, "address": self.address}
        facts |= {"namespace": NAMESPACE, "kinds": (kind,), "preload": (), "lease_s": 30.0}
        return RayProvider(**with_fields(RayTerms, "terms", facts | knobs))

    def engine(self, **knobs):
        return RayEngine(self.address, **knobs)

    def agent(self, node_id, token, *, address="", lease_s=30.0):
        ray_node = next(node.id for node in self.cluster.look() if KIND.fits(node))
        steward = self.cluster.steward(ray_node, NAMESPACE, (), 60.0)
        import_ray().get(steward.ready.remote())
        record = {"node_id": node_id, "offer_id": self.offer_id, "token": token, "began_s": 0.0}
        born = import_ray().get(
            steward.begin.remote(record, {"address": address or self.address, "lease_s": lease_s}, {})
        )
        self._seen[node_id] = (born["pid"], born["start"])
        return born["pid"]

    def left(self):
        for path in (self.folder / "ray-nodes").glob("*.json"):
            claim = json.loads(path.read_text(encoding="utf-8"))
            if claim["pid"] and (seen := processes.look(claim["pid"])) is not None:
                self._seen[claim["node_id"]] = (seen.pid, seen.start)
        return sorted(name for name, (pid, start) in self._seen.items() if processes.instance(pid, start))

    def stranger(self, *lines):
        with socket.create_connection((self.host, int(self.address.rpartition(":")[2])), PATIENCE_S) as line:
            answer = b""
            try:
                for data in lines:
                    line.sendall(data)
                while data := line.recv(65536):
                    answer += data
            except (BrokenPipeError, ConnectionResetError):
                pass
            return answer

    async def connect(self):
        return await asyncio.open_connection(self.host, int(self.address.rpartition(":")[2]))

    # ------------------------------------------------------------------ machines

    def machines(self):
        """Ray's names of those that live and may be used."""
        return {node.id for node in self.cluster.look() if KIND.fits(node) and node.ends_unix_s is None}

    def machine_of(self, ray_node, *, whole=True):
        """All processes of a machine, or Ray's own alone."""
        node = next(node for node in self.nodes.worker_nodes if node.node_id == ray_node)
        found, everybody = {node.all_processes["raylet"][0].process.pid}, processes.everybody()
        while whole and (grown := {p.pid for p in everybody if p.parent in found} - found):
            found |= grown
        return found

    def unplug(self, ray_node, *, whole=True):
        """The machine is gone at once."""
        for pid in self.machine_of(ray_node, whole=whole):
            os.kill(pid, signal.SIGKILL)

    def drain(self, ray_node, in_s):
        """Ray is told that the machine will be taken."""
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        assert self.cluster._gcs.drain_node(ray_node, reason, "test", int((time.time() + in_s) * 1000))[0]

    def restock(self):
        """As many machines as before, for the next test; those that are dead or drained are taken out."""
        alive = self.machines()
        for node in list(self.nodes.worker_nodes):
            dead = node.all_processes["raylet"][0].process.poll() is not None
            if dead or node.node_id not in alive:
                self.nodes.remove_node(node, allow_graceful=False)
        while len(self.nodes.worker_nodes) < NODES:
            add_node(self.nodes)
        end_s = time.monotonic() + PATIENCE_S
        while self.machines() != {node.node_id for node in self.nodes.worker_nodes}:
            assert time.monotonic() < end_s, "Ray does not know its machines"
            time.sleep(0.05)

    def free_cpus(self):
        """What Ray has to give to others, on the nodes that we may use."""
        return sum(node.free.get("CPU", 0.0) for node in self.cluster.look())

    def clean_up(self):
        """Also what is reserved at Ray must be free again."""
        left = super().clean_up()
        end_s = time.monotonic() + PATIENCE_S
        while self.free_cpus() < sum(node.total.get("CPU", 0.0) for node in self.cluster.look()):
            if time.monotonic() > end_s:
                return [*left, "a reservation at Ray"]
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left
