"""Names of Ray that are not public, each with the reason why it is needed: nothing else here uses one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["free_resources", "gcs_client"]


def free_resources(ray: Any) -> Mapping[str, Mapping[str, float]]:
    """Free resources of each node, by its id: the public call adds all nodes up."""
    found: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()  # noqa: SLF001 - above
    return found


def gcs_client(ray: Any) -> Any:
    """A client of Ray's head, as Ray Serve has one: nothing public tells which nodes are drained."""
    return ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)  # noqa: SLF001 - above
