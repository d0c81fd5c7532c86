"""The Ray cluster as the provider sees it: its nodes, those that are drained, and a steward on each that we use."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from sublet.errors import BadInput
from sublet.runtime.providers.ray.config import RayNode
from sublet.runtime.providers.ray.errors import calling_ray, free_resources, gcs_client, import_ray
from sublet.runtime.providers.ray.steward import Steward

__all__ = ["Cluster"]

CALL_S = 30.0  # for an actor to answer; a cold node imports torch before it forks the first agent
GCS_S = 5.0  # for Ray's head to answer


class Cluster:
    """A connection to the cluster as its driver; one per process, as Ray will have it. Errors are of our own tree."""

    def __init__(self, address: str = "") -> None:
        self._ray, self._address = import_ray(), address
        self._gcs: Any = None

    @calling_ray("joining the Ray cluster")
    def connect(self) -> None:
        """Become a driver, unless this process is one already."""
        if not self._ray.is_initialized():
            main = threading.current_thread() is threading.main_thread()
            handler = signal.getsignal(signal.SIGTERM) if main else None
            try:
                self._ray.init(
                    address=self._address or os.environ.get("RAY_ADDRESS") or "auto",
                    log_to_driver=False,
                    configure_logging=False,
                )
            except (self._ray.exceptions.RayError, OSError, ValueError, RuntimeError) as error:
                hint = "ray start --head, or set RAY_ADDRESS to host:port of its head"
                raise BadInput("the Ray cluster", f"cannot be reached ({error})", hint=hint) from error
            finally:
                if handler is not None:
                    signal.signal(signal.SIGTERM, handler)  # Ray puts its own, and ours would never hear of it
        self._gcs = gcs_client(self._ray)

    @property
    @calling_ray("the address of this machine")
    def host(self) -> str:
        """The address of this machine for Ray's other nodes."""
        found: str = self._ray.util.get_node_ip_address()
        return found

    @calling_ray("a look at the Ray cluster")
    def look(self) -> list[RayNode]:
        """All nodes that live. Waits for Ray's head: call it in a thread."""
        free = free_resources(self._ray)
        drained: Mapping[str, int] = self._gcs.get_draining_nodes(timeout=GCS_S)
        return [
            RayNode(
                id=seen["NodeID"],
                host=seen["NodeManagerAddress"],
                total=seen["Resources"],
                free=free.get(seen["NodeID"], {}),
                labels=seen.get("Labels") or {},
                ends_unix_s=_seconds(drained.get(seen["NodeID"])),
            )
            for seen in self._ray.nodes()
            if seen["Alive"]
        ]

    # ------------------------------------------------------------------ stewards

    @calling_ray("a steward on a Ray node")
    def steward(self, ray_node: str, namespace: str, preload: Iterable[str], idle_s: float) -> Any:
        """The actor on this node, made if need be; it takes nothing from the node but memory."""
        strategies = self._ray.util.scheduling_strategies
        return (
            self._ray.remote(Steward)
            .options(
                name=f"sublet-steward-{ray_node}",
                namespace=namespace,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(ray_node, soft=False),
            )
            .remote(namespace=namespace, preload=tuple(preload), idle_s=idle_s)
        )

    @calling_ray("the stewards that there are")
    def stewards(self, namespace: str) -> dict[str, Any]:
        """Those that live, by Ray node: also what an earlier controller left."""
        found = {}
        for entry in self._ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] == namespace and entry["name"].startswith("sublet-steward-"):
                ray_node = entry["name"].removeprefix("sublet-steward-")
                try:
                    found[ray_node] = self._ray.get_actor(entry["name"], namespace=namespace)
                except ValueError:  # it has ended since
                    continue
        return found

    async def call(self, steward: Any, verb: str, *facts: Any, wait_s: float = CALL_S) -> Any:
        """The result of this method of the actor; StewardGone if it never will come, NoAnswer if that is unknown."""
        with calling_ray(f"{verb!r} of a steward"):
            answer = getattr(steward, verb).remote(*facts)
            return await asyncio.wait_for(asyncio.wrap_future(answer.future()), wait_s)

    # ------------------------------------------------------------------ the autoscaler

    @calling_ray("a node of Ray's autoscaler")
    def ask_for(self, reserves: Mapping[str, float]) -> Any:
        """Wait at Ray for a node: what waits makes its autoscaler get one. Ends with this process, unlike a request."""
        return self._ray.util.placement_group([dict(reserves)], strategy="STRICT_PACK", name="sublet-asks")

    @calling_ray("what Ray's autoscaler has brought")
    def given(self, asked: Any) -> str:
        """The node that the wait has brought, and keeps for us; "" = none yet."""
        table = self._ray.util.placement_group_table(asked)
        return str(next(iter(table["bundles_to_node_id"].values()), "")) if table["state"] == "CREATED" else ""

    @calling_ray("the end of a wait at Ray's autoscaler")
    def withdraw(self, asked: Any) -> None:
        """Wait no longer, and give what was kept back."""
        self._ray.util.remove_placement_group(asked)


def _seconds(deadline_ms: int | None) -> float | None:
    """Seconds of the epoch; 0 for a node that is drained without a deadline."""
    if deadline_ms is None:
        return None
    return 0.0 if deadline_ms <= 0 or deadline_ms >= 1 << 62 else deadline_ms / 1000.0
