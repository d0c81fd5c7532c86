"""Samples per second of one job on every machine and number of nodes, measured where it can be, else predicted.

A machine is a kind of GPU, how many of it a node has, and the network between nodes. For a kind without a curve of its
own, the curves of others are carried over: compute by facts about the GPUs, memory by its size, the exchange by the
links. Where the user measured rates, only these count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sublet.domain.offer import Gpu
from sublet.planning.advise_profiles import ALIKE, LATENCY_S, Curve, Profile, learned_ratio, overlapped_s
from sublet.planning.advise_transfer import FACTS_SPREAD, TRANSFER_SPREAD, ratio_from_facts

__all__ = ["Machine", "Speeds", "curve_for", "speeds", "step_s_on"]

# M machines, N numbers of nodes
Floats = npt.NDArray[np.float64]

WIDER = 0.25  # standard deviation of the logarithm beyond the widest measurement, or over a slower network
BYTES_PER_GBIT = 0.125e9
GB, GIB = 1e9, 1024.0**3
STATE_GRADIENTS = 4.0  # weights, gradients and two moments are as large as the gradients four times
RESERVED_GIB = 1.0  # context and buffers
NO_ROOM = "too little memory, or no facts about this GPU"
LINK_SHARE = 0.7  # of a link's peak that a ring of all GPUs gets


class Machine(NamedTuple):
    """What decides the speed of a node."""

    gpu: str
    gpus: int
    gbit_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speeds:
    """Rates, 0 where it cannot run; how sure they are; and where they come from."""

    rate_MN: Floats  # samples per second
    spread_MN: Floats  # standard deviation of the logarithm
    how: tuple[str, ...]  # per machine: "measured", "predicted from ...", or why it cannot run


def speeds(profile: Profile, machines: Sequence[Machine], most_nodes: int, gpus: Mapping[str, Gpu]) -> Speeds:
    """For 1 to `most_nodes` nodes of each machine. O(machines x nodes)."""
    nodes_N = np.arange(1.0, most_nodes + 1.0)
    rates, spreads, how = [], [], []
    for machine in machines:
        if profile.rates:
            rate_N = _own_rates(profile, machine, nodes_N)
            rates.append(rate_N)
            spreads.append(np.full(len(nodes_N), profile.spread))
            how.append("measured" if rate_N.any() else "not measured")
            continue
        curve, spread, whence = curve_for(profile, machine, gpus)
        if curve is None:
            rates.append(np.zeros(len(nodes_N)))
            spreads.append(np.zeros(len(nodes_N)))
        else:
            rates.append(_rates(curve, profile.batch, machine, nodes_N, gpus.get(machine.gpu)))
            beyond_N = (nodes_N * machine.gpus > curve.most_gpus) | (
                (nodes_N > 1) & (machine.gbit_per_s < curve.gbit_per_s)
            )
            spreads.append(np.where(beyond_N, math.hypot(spread, WIDER), spread))
        how.append(whence)
    return Speeds(rate_MN=np.array(rates), spread_MN=np.array(spreads), how=tuple(how))


def _own_rates(profile: Profile, machine: Machine, nodes_N: Floats) -> Floats:
    """Between two measured numbers of GPUs the rate is linear; outside, and on other kinds, it is 0."""
    by = profile.rates.get(machine.gpu) or profile.rates.get(ALIKE.get(machine.gpu, "")) or {}
    if not by:
        return np.zeros(len(nodes_N))
    counts = np.array(sorted(by), dtype=np.float64)
    known = np.array([by[int(count)] for count in counts])
    gpus_N = nodes_N * machine.gpus
    rate_N = np.interp(gpus_N, counts, known, left=0.0, right=0.0)
    if not profile.between:
        rate_N = np.where(np.isin(gpus_N, counts), rate_N, 0.0)
    within = counts[counts <= machine.gpus]  # a node may be rented whole and used in part
    if len(within):
        rate_N[0] = max(rate_N[0], *(by[int(count)] for count in within))
    return np.asarray(rate_N)


def curve_for(profile: Profile, machine: Machine, gpus: Mapping[str, Gpu]) -> tuple[Curve | None, float, str]:
    """The curve of this kind, or that of another kind carried over; how sure; and which."""
    target = gpus.get(machine.gpu)
    for kind in (machine.gpu, ALIKE.get(machine.gpu, "")):
        if kind in profile.curves:
            curve = profile.curves[kind]
            most = curve.max_local if target is None else _max_local(curve, target.mem_gib)
            return (replace(curve, max_local=most), profile.spread, "measured") if most else (None, 0.0, NO_ROOM)
    if target is None:
        return None, 0.0, "unknown kind"
    found = []
    for kind, curve in profile.curves.items():
        learned = learned_ratio(kind, machine.gpu)
        ratio = learned if math.isfinite(learned) else ratio_from_facts(gpus[kind], target)
        most = _max_local(curve, target.mem_gib)
        if math.isfinite(ratio) and most >= 1:
            found.append((not math.isfinite(learned), abs(math.log(ratio)), kind, ratio, most))
    if not found:
        return None, 0.0, NO_ROOM
    by_facts, _, kind, ratio, most = min(found)  # from other models if possible, and from the kind that is most like it
    near = profile.curves[kind]
    # Launching kernels takes the host as long on any GPU, so the fixed part is not carried below half of what it was.
    curve = replace(near, alpha_s=near.alpha_s * max(ratio, 0.5), beta_s=near.beta_s * ratio, max_local=most)
    if by_facts:
        return curve, FACTS_SPREAD, f"predicted from {kind} by GPU facts"
    return curve, TRANSFER_SPREAD, f"predicted from {kind} as other models"


def _max_local(curve: Curve, mem_gib: float) -> int:
    """The local batch that memory holds: weights, gradients and optimizer stay as they are, the rest is samples."""
    if mem_gib == curve.mem_gib:
        return curve.max_local
    fixed_gib = STATE_GRADIENTS * curve.gradient_bytes / GIB + RESERVED_GIB
    free, had = mem_gib - fixed_gib, curve.mem_gib - fixed_gib
    return max(int(curve.max_local * free / had), 0) if had > 0 else 0


def _rates(curve: Curve, batch: int, machine: Machine, nodes_N: Floats, gpu: Gpu | None) -> Floats:
    """At a fixed global batch; where memory is short, gradients are accumulated before they are exchanged.

    A node is rented whole. All of its GPUs are used, but never more than there are samples; alone, a node may also be
    used in part, if that is faster.
    """
    gpus_N = np.minimum(nodes_N * machine.gpus, float(batch))
    rate_N = _rate(curve, batch, nodes_N, gpus_N, machine, gpu)
    rate_N = np.where(gpus_N > (nodes_N - 1) * machine.gpus, rate_N, 0.0)  # else whole nodes would be idle
    parts = np.arange(1.0, min(machine.gpus, batch) + 1.0)
    rate_N[0] = _rate(curve, batch, np.ones(len(parts)), parts, machine, gpu).max()
    return np.asarray(rate_N)


def _rate(curve: Curve, batch: int, nodes: Floats, gpus: Floats, machine: Machine, gpu: Gpu | None) -> Floats:
    each = np.ceil(batch / gpus)  # all wait for the GPU with the most samples
    steps = np.ceil(each / curve.max_local)
    compute_s = curve.alpha_s + curve.beta_s * np.ceil(each / steps)
    full_s = overlapped_s(compute_s, _exchange_s(curve, nodes, gpus, machine, gpu), curve.gamma)
    return np.asarray(batch / (full_s + (steps - 1.0) * compute_s))


def step_s_on(curve: Curve, confs: Floats, machine: Machine, gpu: Gpu | None) -> Floats:
    """Seconds of a step at rows of (nodes, GPUs, local batch), over the network of a machine."""
    nodes, gpus, local = confs.T
    compute_s = curve.alpha_s + curve.beta_s * local
    return overlapped_s(compute_s, _exchange_s(curve, nodes, gpus, machine, gpu), curve.gamma)


def _exchange_s(curve: Curve, nodes: Floats, gpus: Floats, machine: Machine, gpu: Gpu | None) -> Floats:
    """Seconds to add up gradients, before overlap."""
    network = machine.gbit_per_s * BYTES_PER_GBIT * LINK_SHARE
    if not curve.fitted:
        link = max(gpu.nvlink_gb_per_s / 2.0, gpu.pcie_gb_per_s) if gpu else 16.0  # one way
        bytes_per_s = np.where(nodes > 1, network, link * GB * LINK_SHARE)
        return np.asarray(2.0 * (gpus - 1.0) * (curve.gradient_bytes / gpus / bytes_per_s + LATENCY_S))
    wide = np.maximum(gpus - 2.0, 0.0)
    inside_s = curve.node_alpha_s + curve.node_beta_s * wide
    # Over a slower network than was measured, the same bytes take so much longer; a faster one is not believed.
    slower = (
        max(1.0 / network - 1.0 / (curve.gbit_per_s * BYTES_PER_GBIT * LINK_SHARE), 0.0) if curve.gbit_per_s else 0.0
    )
    more_s = 2.0 * (nodes - 1.0) / nodes * curve.gradient_bytes * slower
    between_s = curve.net_alpha_s + curve.net_beta_s * wide + more_s
    return np.asarray(np.where(gpus > 1, np.where(nodes > 1, between_s, inside_s), 0.0))
