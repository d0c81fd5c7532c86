"""Places to keep checkpoints and the cost of reclaims there: intervals by tier, lost work and restarts.

On demand nothing is reclaimed. On spot, checkpoints go to object storage, to the memory of a peer node, or to machines
without GPUs that are rented on demand (DeepVM's tiering). If some nodes of the cluster itself are on demand (one in
DeepVM's single-server architecture), they keep checkpoints in their memory: nothing is written faster, and nothing is
lost.

A place to keep checkpoints is a set of tiers (`TIERS_OF`), with the intervals of the one model of them
(`perf.preemption.tiers`), which live jobs follow, too. A peer's memory is quick and free, but a reclaim that takes both
nodes loses it; then the last copy in object storage counts, a multiple as old. In another zone, a peer is not lost at
the same time.

After a reclaim the job either waits until its nodes are replaced, or goes on with those that are left and takes the
others in when they come, for a second restart. Whichever is quicker is what is advised.

If an offer states a notice, new nodes are asked for at it; if it is long enough to write a checkpoint, none is written
before, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from sublet.domain.quantity import at_least, named, positive, whole
from sublet.domain.units import BYTES_PER_GBIT, GIB, SECONDS_PER_H
from sublet.perf.preemption import Recovery, hit_cost_s, missing_nodes, speed_kept, toll_of_waiting
from sublet.perf.preemption.tiers import Ladder, Tier, best_tiering, copy_s
from sublet.solve.arrays import Bools, Floats

# R rows (an offer and a way to keep), N numbers of nodes
Keeper = Literal["nothing", "storage", "peers", "anchors", "nodes"]
KEEPERS: Mapping[Keeper, str] = MappingProxyType(
    {
        "nothing": "nowhere",
        "storage": "in object storage",
        "peers": "in the memory of peers",
        "anchors": "on machines without GPUs",
        "nodes": "in the memory of the nodes on demand",
    }
)
TIERS_OF: Mapping[Keeper, tuple[Tier, ...]] = MappingProxyType(
    {
        "nothing": (),
        "storage": ("bucket",),
        "peers": ("peers", "bucket"),
        "anchors": ("anchor",),
        "nodes": ("anchor",),  # nodes on demand are checkpoint servers that train
    }
)
STORAGE_BYTES_PER_S = 0.5e9  # of one node to object storage: several streams over 5 Gbit/s or more
STANDSTILL = 1e-9  # of its speed: a job that keeps less never ends
CALM_PER_S = 1e-12  # one reclaim in thirty thousand years is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """An on-demand machine without GPUs that only receives checkpoints."""

    name: str
    usd_per_h: float
    mem_gib: float
    gbit_per_s: float
    most: int = 64  # 256 vCPUs of quota, 4 each

    def __post_init__(self) -> None:
        named("anchor", self.name)
        for field in ("usd_per_h", "mem_gib", "gbit_per_s"):
            positive(field, getattr(self, field))
        whole("most", self.most, 1)


# Prices and networks as the authors of DeepVM state them (lass-lab/DeepVM, 8b661e40); its loops end at 63.
ANCHORS = tuple(
    Anchor(name=f"{name}.xlarge", usd_per_h=usd, mem_gib=mem, gbit_per_s=net, most=63)
    for name, usd, mem, net in (
        ("c3", 0.21, 7.5, 0.3),
        ("c4", 0.199, 7.5, 1.7),
        ("t3", 0.1664, 16.0, 5.0),
        ("c5", 0.17, 8.0, 10.0),
        ("m6i", 0.192, 16.0, 12.5),
        ("d3", 0.499, 32.0, 15.0),
        ("c5n", 0.216, 10.5, 25.0),
        ("c6in", 0.2268, 8.0, 30.0),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Sizes and times of a job's checkpoints and starts."""

    state_bytes: float
    restart_s: float = 60.0  # until it trains again, once its nodes are there
    provision_s: float = 120.0  # until a node is there: clouds take one to five minutes

    def __post_init__(self) -> None:
        positive("state_bytes", self.state_bytes)
        at_least("restart_s", self.restart_s, 0.0)
        at_least("provision_s", self.provision_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleets:
    """Rows of clusters: place of checkpoints, nodes that cannot be reclaimed, and reclaims of the others."""

    keepers: Sequence[Keeper]
    nodes_N: Floats
    steady_RN: Floats  # nodes on demand
    hazard_per_h_R: Floats
    notice_s_R: Floats  # 0 = none
    at_once_RN: Floats
    all_RN: Floats  # the chance that a reclaim leaves no node
    wait_s_RN: Floats
    wait_square_RN: Floats
    spread_R: Bools  # over several zones
    gbit_per_s_R: Floats
    rate_RN: Floats  # samples per second, undisturbed

    def rate_at(self, nodes_RN: Floats) -> Floats:
        """On a number of nodes that need not be whole; none on no nodes."""
        rate_RN = np.concatenate((np.zeros((len(self.rate_RN), 1)), self.rate_RN), axis=1)
        low_RN = np.clip(nodes_RN.astype(np.intp), 0, rate_RN.shape[1] - 2)
        low, high = (np.take_along_axis(rate_RN, low_RN + more, axis=1) for more in (0, 1))
        return np.asarray(low + (nodes_RN - low_RN) * (high - low))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outages:
    """Per row and number of nodes: how much longer all takes, and what of it one reclaim costs."""

    slowdown_RN: Floats  # infinite where the job would never end
    per_h_RN: Floats  # reclaims, of one node or several at once
    lost_s_RN: Floats  # by one of them: redone work, restarts and waits; the root of its mean square
    every_s_RN: Floats  # between two checkpoints; infinite where none is needed, or one at a notice is enough
    write_s_RN: Floats  # of one checkpoint with its share of a copy beside it, and to read it again
    copied_s_RN: Floats  # between two copies to object storage beside that; infinite where none is needed
    paid_RN: Floats  # spot nodes that are there, on average: others are not paid for
    goes_on_RN: Bools  # with those that are left, rather than waiting


def outages(fleets: Fleets, job: Checkpoints) -> Outages:
    """For all clusters at once, by the one model of reclaims (`perf.preemption`). O(R N)."""
    nodes_N, steady_RN = fleets.nodes_N, fleets.steady_RN
    spot_RN = nodes_N - steady_RN
    at_once_RN = np.minimum(fleets.at_once_RN, np.maximum(spot_RN, 1.0))
    node_per_s_RN = fleets.hazard_per_h_R[:, None] / SECONDS_PER_H + 0.0 * nodes_N
    hits_RN = np.maximum(node_per_s_RN * spot_RN / at_once_RN, 0.0)
    tiers = _Tiers.of(fleets, job, hits_RN, _with_peer(fleets, at_once_RN))
    write_s_RN = tiers.write_s_RN
    notice_s_R1 = fleets.notice_s_R[:, None]
    warned_RN = (notice_s_R1 > 0.0) & (notice_s_R1 >= write_s_RN)
    boot_s_R1 = np.maximum(0.0, job.provision_s - notice_s_R1)
    recovery = Recovery(
        every_s=np.where(warned_RN, 0.0, tiers.every_s_RN),
        write_s=np.where(warned_RN, 0.0, write_s_RN),
        boot_s=boot_s_R1,
        # What was written is read as fast; what a lost peer had is done once more.
        restart_s=job.restart_s + write_s_RN + tiers.beyond_s_RN,
        sold_out_s=fleets.wait_s_RN,
        none_left=fleets.all_RN,
    )
    calm_RN = hits_RN < CALM_PER_S
    off_RN = hits_RN * fleets.wait_s_RN
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        left_RN = _survivors_share(fleets, hits_RN, at_once_RN, fleets.wait_s_RN + boot_s_R1)
        waiting_RN = speed_kept(hits_RN, recovery)
        going_RN = speed_kept(hits_RN, recovery, left_RN)
        goes_on_RN = (going_RN > waiting_RN) & (nodes_N - at_once_RN >= 1.0) & (left_RN > 0.0)
        speed_RN = np.where(calm_RN, 1.0, np.where(goes_on_RN, going_RN, waiting_RN))
        felt_RN = np.where(goes_on_RN, (1.0 - left_RN) * (1.0 - fleets.all_RN) + fleets.all_RN, 1.0)
        # With waiting, tries in vain and pauses vary by a known amount; with going on, only their cost is known.
        lost_s_RN = np.where(
            goes_on_RN,
            hit_cost_s(hits_RN, speed_RN, recovery.every_s, recovery.write_s),
            np.sqrt(toll_of_waiting(hits_RN, recovery, fleets.all_RN).varies_C * speed_RN / hits_RN),
        )
        # The mean wait is in it; that waits differ is not.
        varies_RN = np.maximum(fleets.wait_square_RN - fleets.wait_s_RN**2, 0.0)
        lost_s_RN = np.sqrt(lost_s_RN**2 + felt_RN**2 * varies_RN)
        paid_RN = np.where(
            goes_on_RN,
            spot_RN / (1.0 + node_per_s_RN * fleets.wait_s_RN),
            spot_RN - at_once_RN * off_RN / (1.0 + off_RN),
        )
    keeper_R1 = np.array(fleets.keepers)[:, None]
    alone_RN = ((keeper_R1 == "peers") & (nodes_N < 2)) | ((keeper_R1 == "nodes") & (spot_RN < 1))  # noqa: PLR2004 - a pair
    never_RN = alone_RN | (spot_RN < 0) | (speed_RN < STANDSTILL)
    with np.errstate(divide="ignore", over="ignore"):
        slowdown_RN = np.where(never_RN, np.inf, 1.0 / speed_RN)
    return Outages(
        slowdown_RN=slowdown_RN,
        per_h_RN=hits_RN * SECONDS_PER_H,
        lost_s_RN=np.where(calm_RN, 0.0, lost_s_RN),
        every_s_RN=np.where(calm_RN | warned_RN, np.inf, recovery.every_s),
        write_s_RN=np.where(calm_RN, 0.0, write_s_RN),
        copied_s_RN=np.where(calm_RN, np.inf, tiers.copied_s_RN),
        paid_RN=np.where(calm_RN, spot_RN, paid_RN),
        goes_on_RN=goes_on_RN & ~calm_RN,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tiers:
    """The nearest tier of each row, and object storage behind the memory of peers."""

    every_s_RN: Floats
    write_s_RN: Floats
    copied_s_RN: Floats
    beyond_s_RN: Floats  # what a reclaim costs on average because the nearest tier may be lost with it

    @classmethod
    def of(cls, fleets: Fleets, job: Checkpoints, hits_RN: Floats, both_RN: Floats) -> _Tiers:
        """By the model that live jobs follow, too. `both_RN`: the chance that a reclaim takes the nearest tier."""
        write_s_RN = copy_s(job.state_bytes, _bytes_per_s(fleets, job))
        copy_s_RN = copy_s(job.state_bytes, _storage_bytes_per_s(fleets))
        ladder = Ladder(
            hits_per_s=np.stack([hits_RN * (1.0 - both_RN), hits_RN * both_RN]),
            cost_s=np.stack([write_s_RN, copy_s_RN]),  # nothing is known of the trainer: it waits for all of it
        )
        every_s_RN, copied_s_RN = best_tiering(ladder, skips=False).every_s_KC
        every_s_RN = np.where(np.isfinite(every_s_RN), every_s_RN, copied_s_RN)  # no reclaim leaves the peer
        with np.errstate(invalid="ignore"):
            share_RN = np.where(np.isfinite(copied_s_RN), every_s_RN / copied_s_RN, 0.0)
            more_s_RN = (copied_s_RN - every_s_RN) / 2.0 + np.maximum(copy_s_RN - write_s_RN, 0.0)
            beyond_s_RN = np.where(np.isfinite(copied_s_RN), both_RN * more_s_RN, 0.0)
        return cls(
            every_s_RN=every_s_RN,
            write_s_RN=write_s_RN + share_RN * copy_s_RN,
            copied_s_RN=copied_s_RN,
            beyond_s_RN=beyond_s_RN,
        )


def _survivors_share(fleets: Fleets, hits_RN: Floats, at_once_RN: Floats, gone_s_RN: Floats) -> Floats:
    """The share of the speed of all nodes that is left while some are gone but not all."""
    all_RN, spot_RN = fleets.all_RN, np.maximum(fleets.nodes_N - fleets.steady_RN, 0.0)
    some_RN = np.maximum((at_once_RN - all_RN * fleets.nodes_N) / np.maximum(1.0 - all_RN, 1e-9), 0.0)
    missing_RN = np.minimum(missing_nodes(hits_RN, np.maximum(some_RN, 1.0), spot_RN, gone_s_RN), spot_RN)
    return fleets.rate_at(np.maximum(fleets.nodes_N - missing_RN, 0.0)) / fleets.rate_RN


def _with_peer(fleets: Fleets, at_once_RN: Floats) -> Floats:
    """The chance that a reclaim takes a node and its peer; none in another zone, or where others keep checkpoints."""
    here_R1 = (np.array(fleets.keepers) == "peers")[:, None] & ~fleets.spread_R[:, None]
    return np.where(here_R1, np.clip((at_once_RN - 1.0) / np.maximum(fleets.nodes_N - 1.0, 1.0), 0.0, 1.0), 0.0)


def _bytes_per_s(fleets: Fleets, job: Checkpoints) -> Floats:
    """At which checkpoints are written."""
    nodes_N, net_R1 = fleets.nodes_N, fleets.gbit_per_s_R[:, None] * BYTES_PER_GBIT
    keeper_R1 = np.array(fleets.keepers)[:, None]
    return np.select(
        [keeper_R1 == "peers", keeper_R1 == "anchors", keeper_R1 == "nodes"],
        [
            net_R1 + 0.0 * nodes_N,
            np.minimum(net_R1 * nodes_N, _anchor_bytes_per_s(job, nodes_N)[None, :]),
            net_R1 * np.maximum(np.minimum(fleets.steady_RN, nodes_N - fleets.steady_RN), 1.0),
        ],
        _storage_bytes_per_s(fleets),
    )


def _storage_bytes_per_s(fleets: Fleets) -> Floats:
    """Bytes a second of one node."""
    return np.minimum(fleets.gbit_per_s_R[:, None] * BYTES_PER_GBIT, STORAGE_BYTES_PER_S) + 0.0 * fleets.nodes_N


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
