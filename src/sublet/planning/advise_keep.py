"""Where checkpoints are kept, and what reclaims cost then: the interval of Young and Daly, lost work and restarts.

Five ways for a cluster of n nodes. On demand nothing is reclaimed. On spot, checkpoints go to object storage, to the
memory of a peer node, or to machines without GPUs that are rented on demand (DeepVM's tiering). Or some nodes of the
cluster itself are on demand: one (DeepVM's single anchor), or half, which also halves the reclaims.

A peer's memory is quick and free, but a reclaim that takes both nodes loses it; then the last copy in object storage
counts, which is written in the background once in a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from sublet.domain.quantity import at_least, positive
from sublet.planning.deepvm_facts import ANCHORS, Anchor

__all__ = ["BACKGROUND_S", "KEEPERS", "Checkpoints", "Keeper", "anchors_for", "nodes_on_demand", "outages"]

# R rows (an offer and a way to keep), N numbers of nodes
Floats = npt.NDArray[np.float64]
Keeper = Literal["nothing", "storage", "peers", "anchors", "one node", "half"]
KEEPERS: Mapping[Keeper, str] = MappingProxyType(
    {
        "nothing": "on demand",
        "storage": "spot, checkpoints in object storage",
        "peers": "spot, checkpoints in peers' memory",
        "anchors": "spot, checkpoints on machines without GPUs",
        "one node": "spot but for one node on demand, which keeps checkpoints",
        "half": "half spot, half on demand, which keeps checkpoints",
    }
)
STORAGE_BYTES_PER_S = 0.5e9  # of one node to object storage: several streams over 5 Gbit/s or more
DISK_BYTES_PER_S = 0.5e9  # of a node's own volume
BACKGROUND_S = 3600.0  # between two copies to object storage while peers keep the checkpoints
GIB = 1024.0**3
SECONDS_PER_H = 3600.0
BYTES_PER_GBIT = 0.125e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What a job writes, and what a start costs it."""

    state_bytes: float
    restart_s: float = 60.0  # until it trains again, once its nodes are there
    provision_s: float = 120.0  # until a node is there: clouds take one to five minutes

    def __post_init__(self) -> None:
        positive("state_bytes", self.state_bytes)
        at_least("restart_s", self.restart_s, 0.0)
        at_least("provision_s", self.provision_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outages:
    """Per row and number of nodes: how much longer all takes, and what of it one reclaim costs."""

    slowdown_RN: Floats  # infinite where the job would never end
    per_h_RN: Floats  # reclaims of any node
    lost_s_RN: Floats  # by one of them: redone work, restart and new node
    every_s_RN: Floats  # between two checkpoints; infinite where none is needed
    write_s_RN: Floats  # of one checkpoint, and to read it again


def outages(
    keepers: Sequence[Keeper],
    hazard_per_h_R: Floats,
    at_once_R: Floats,
    gbit_per_s_R: Floats,
    nodes_N: Floats,
    job: Checkpoints,
) -> Outages:
    """The same sum as `rental_shapes.reclaim_slowdown`, for all clusters at once. O(R N)."""
    keeper_R1 = np.array(keepers)[:, None]
    spot_RN = nodes_N[None, :] - nodes_on_demand(keepers, nodes_N)
    per_s_RN = hazard_per_h_R[:, None] * spot_RN / SECONDS_PER_H
    net_R1 = gbit_per_s_R[:, None] * BYTES_PER_GBIT
    bytes_per_s_RN = np.select(
        [keeper_R1 == "peers", keeper_R1 == "anchors", keeper_R1 == "storage"],
        [
            net_R1 + 0.0 * nodes_N,
            np.minimum(net_R1 * nodes_N, _anchor_bytes_per_s(job, nodes_N)[None, :]),
            np.minimum(net_R1, STORAGE_BYTES_PER_S) + 0.0 * nodes_N,
        ],
        np.minimum(net_R1, DISK_BYTES_PER_S) + 0.0 * nodes_N,
    )
    write_s_RN = job.state_bytes / bytes_per_s_RN
    with np.errstate(divide="ignore", invalid="ignore"):
        every_s_RN = np.sqrt(2.0 * write_s_RN / per_s_RN)
        both_RN = np.clip((at_once_R[:, None] - 1.0) / (nodes_N - 1.0), 0.0, 1.0)  # that a reclaim takes the peer too
        redone_s_RN = every_s_RN / 2.0 + np.where(keeper_R1 == "peers", both_RN * BACKGROUND_S / 2.0, 0.0)
        lost_s_RN = redone_s_RN + job.restart_s + job.provision_s + write_s_RN  # it is read as fast as it is written
        useful_RN = 1.0 - write_s_RN / every_s_RN - per_s_RN * lost_s_RN
        slowdown_RN = np.where(useful_RN > 0, 1.0 / np.maximum(useful_RN, 1e-12), np.inf)
    calm_RN = per_s_RN == 0.0
    least_R1 = np.select([keeper_R1 == "half", (keeper_R1 == "peers") | (keeper_R1 == "one node")], [3.0, 2.0], 1.0)
    return Outages(
        slowdown_RN=np.where(nodes_N < least_R1, np.inf, np.where(calm_RN, 1.0, slowdown_RN)),
        per_h_RN=per_s_RN * SECONDS_PER_H,
        lost_s_RN=np.where(calm_RN, 0.0, lost_s_RN),
        every_s_RN=np.where(calm_RN, np.inf, every_s_RN),
        write_s_RN=np.where(calm_RN, 0.0, write_s_RN),
    )


def nodes_on_demand(keepers: Sequence[Keeper], nodes_N: Floats) -> Floats:
    """How many nodes of each cluster cannot be reclaimed."""
    keeper_R1 = np.array(keepers)[:, None]
    whole_RN = np.broadcast_to(nodes_N, (len(keepers), len(nodes_N)))
    return np.asarray(
        np.select(
            [keeper_R1 == "nothing", keeper_R1 == "one node", keeper_R1 == "half"],
            [whole_RN, np.ones_like(whole_RN), np.ceil(whole_RN / 2.0)],
            0.0,
        )
    )


def anchors_for(job: Checkpoints, nodes: int) -> tuple[Anchor, int]:
    """The cheapest machines without GPUs whose memory holds two checkpoints, one for every 16 nodes that send."""

    def count(anchor: Anchor) -> int:
        hold = int(-(-2.0 * job.state_bytes // (anchor.mem_gib * GIB)))
        return max(hold, -(-nodes // 16), 1)

    best = min(ANCHORS, key=lambda anchor: (count(anchor) * anchor.usd_per_h, -anchor.gbit_per_s))
    return best, count(best)


def _anchor_bytes_per_s(job: Checkpoints, nodes_N: Floats) -> Floats:
    found = [anchors_for(job, int(nodes)) for nodes in nodes_N]
    return np.array([count * anchor.gbit_per_s * BYTES_PER_GBIT for anchor, count in found])
