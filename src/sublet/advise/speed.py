"""Samples per second of one job on every machine and number of nodes, measured where it can be, else predicted.

A machine is a kind of GPU, how many of it a node has, and the network between nodes. For a kind on which the model was
not measured, its steps on other kinds are carried over by `Transfer`, which `sublet study deepvm` holds to measured
steps. A network slower than those of the measurements costs what the same bytes take longer. If the user measured
rates, only these count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from sublet.advise.measured_models import gavel_shelf, shelf_name, sia_shelf
from sublet.advise.profiles import ALIKE, LATENCY_S, Curve, Profile, overlapped_s
from sublet.advise.transfer import PREDICTED_SPREAD, Transfer, middle_s
from sublet.domain.offer import Gpu
from sublet.domain.units import BYTES_PER_GBIT, GB, GIB
from sublet.errors import MissingData
from sublet.perf.measured import MODELS
from sublet.solve.arrays import Floats

# M machines, N numbers of nodes, K kinds on which the model was measured, R rows of (nodes, GPUs, local batch)

WIDER = 0.25  # standard deviation of the logarithm beyond the widest measurement, or over a slower network
STATE_GRADIENTS = 4.0  # weights, gradients and two moments are as large as the gradients four times
RESERVED_GIB = 1.0  # context and buffers
NO_ROOM = "too little memory, or no facts about this GPU"
LINK_SHARE = 0.7  # of a link's peak that a ring of all GPUs gets


class Machine(NamedTuple):
    """The facts that decide the speed of a node."""

    gpu: str
    gpus: int
    gbit_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pace:
    """How long steps take on one machine, at rows of (nodes, GPUs, local batch), and how sure that is."""

    step_s: Callable[[Floats], Floats]
    max_local: int
    most_gpus: int  # the widest measurement
    gbit_per_s: float  # the network of the measurements; 0 if there was none
    spread: float  # standard deviation of the logarithm
    how: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speeds:
    """Rates, 0 where it cannot run; how sure they are; and where they come from."""

    rate_MN: Floats  # samples per second
    spread_MN: Floats  # standard deviation of the logarithm
    how: tuple[str, ...]  # per machine: "measured", "predicted from ...", or why it cannot run


def speeds(
    profile: Profile,
    machines: Sequence[Machine],
    most_nodes: int,
    gpus: Mapping[str, Gpu],
    transfer: Transfer | None = None,
) -> Speeds:
    """For 1 to `most_nodes` nodes of each machine. O(machines x nodes)."""
    nodes_N = np.arange(1.0, most_nodes + 1.0)
    transfer = transfer or transfer_for(profile, gpus)
    rates, spreads, how = [], [], []
    for machine in machines:
        if profile.rates:
            rate_N = _own_rates(profile, machine, nodes_N)
            rates.append(rate_N)
            spreads.append(np.full(len(nodes_N), profile.spread))
            how.append("measured" if rate_N.any() else "not measured")
            continue
        pace = pace_on(profile, machine, gpus, transfer)
        if pace is None:
            rates.append(np.zeros(len(nodes_N)))
            spreads.append(np.zeros(len(nodes_N)))
            how.append(NO_ROOM)
            continue
        rates.append(_rates(pace, profile.batch, machine, nodes_N))
        beyond_N = (nodes_N * machine.gpus > pace.most_gpus) | ((nodes_N > 1) & (machine.gbit_per_s < pace.gbit_per_s))
        spreads.append(np.where(beyond_N, math.hypot(pace.spread, WIDER), pace.spread))
        how.append(pace.how)
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


def transfer_for(profile: Profile, gpus: Mapping[str, Gpu]) -> Transfer:
    """Data to carry the steps of this model over: measurements of others that ran where it did, and facts.

    Sia's other models ran on the kinds on which this one did, so they say nothing new, and take long to read.
    """
    try:
        own = sia_shelf((profile.name,)) if profile.name in MODELS else {}
    except MissingData:
        own = {}
    return Transfer({(model, shelf_name(kind)): found for (model, kind), found in own.items()} | gavel_shelf(), gpus)


def pace_on(profile: Profile, machine: Machine, gpus: Mapping[str, Gpu], transfer: Transfer) -> Pace | None:
    """Measured, or carried over from the kinds on which it was; None where it has no room, or nothing is known."""
    target = gpus.get(machine.gpu)
    for kind in (machine.gpu, ALIKE.get(machine.gpu, "")):
        if kind in profile.curves:
            curve = profile.curves[kind]
            most = curve.max_local if target is None else _max_local(curve, target.mem_gib)
            step_s = partial(_measured_s, curve, machine, target)
            own = Pace(
                step_s=step_s,
                max_local=most,
                most_gpus=curve.most_gpus,
                gbit_per_s=curve.gbit_per_s,
                spread=profile.spread,
                how="measured",
            )
            return own if most else None
    if target is None:
        return None
    ratios = {kind: transfer.ratio(shelf_name(kind), shelf_name(machine.gpu), profile.name) for kind in profile.curves}
    near = min(profile.curves, key=lambda kind: abs(math.log(profile.curves[kind].mem_gib / target.mem_gib)))
    most = _max_local(profile.curves[near], target.mem_gib)
    if not most or not any(math.isfinite(ratio) for ratio in ratios.values()):
        return None
    learned = transfer.ran(profile.name, [shelf_name(kind) for kind in profile.curves], shelf_name(machine.gpu))
    kinds = " and ".join(profile.curves) if len(profile.curves) <= 2 else f"{len(profile.curves)} kinds"  # noqa: PLR2004 - as many as fit a line
    return Pace(
        step_s=partial(_carried_s, profile, machine, target, transfer),
        max_local=most,
        most_gpus=max(curve.most_gpus for curve in profile.curves.values()),
        gbit_per_s=min(curve.gbit_per_s for curve in profile.curves.values()),
        spread=PREDICTED_SPREAD,
        how=f"predicted from {kinds} " + ("as other models" if learned else "by GPU facts"),
    )


def _measured_s(curve: Curve, machine: Machine, gpu: Gpu | None, confs: Floats) -> Floats:
    nodes, gpus, local = confs.T
    compute_s = curve.alpha_s + curve.beta_s * local
    return overlapped_s(compute_s, _exchange_s(curve, nodes, gpus, machine, gpu), curve.gamma)


def _carried_s(profile: Profile, machine: Machine, gpu: Gpu, transfer: Transfer, confs: Floats) -> Floats:
    """The gain of a faster GPU applies to the whole step where the exchange was measured too, else to compute alone.

    Only compute ought to gain, but carrying the whole over errs less: faster kinds also have faster links. So only a
    network slower than all that were measured costs more.
    """
    nodes, gpus, local = confs.T
    curves = list(profile.curves.values())
    usual = min(curve.gbit_per_s for curve in curves)
    alone, later = [], []
    for curve in curves:
        compute_s = curve.alpha_s + curve.beta_s * local
        if curve.fitted:
            exchange_s = _fitted_exchange_s(curve, nodes, gpus)
            slow_s = exchange_s + _slower_s(curve, nodes, machine, usual)
            alone.append(overlapped_s(compute_s, exchange_s, curve.gamma))
            later.append(overlapped_s(compute_s, slow_s, curve.gamma) - alone[-1])
        else:
            alone.append(compute_s)
            later.append(np.zeros(len(local)))
    sources = [shelf_name(kind) for kind in profile.curves]
    carried_KR = transfer.carried(profile.name, sources, shelf_name(machine.gpu), confs, np.array(alone))
    for row, curve in enumerate(curves):
        if not curve.fitted:
            exchange_s = _exchange_s(curve, nodes, gpus, machine, gpu)
            carried_KR[row] = overlapped_s(carried_KR[row], exchange_s, curve.gamma)
    return middle_s(carried_KR + np.array(later))


def _max_local(curve: Curve, mem_gib: float) -> int:
    """The local batch that memory holds: weights, gradients and optimizer stay as they are, the rest is samples."""
    if mem_gib == curve.mem_gib:
        return curve.max_local
    fixed_gib = STATE_GRADIENTS * curve.gradient_bytes / GIB + RESERVED_GIB
    free, had = mem_gib - fixed_gib, curve.mem_gib - fixed_gib
    return max(int(curve.max_local * free / had), 0) if had > 0 else 0


def _rates(pace: Pace, batch: int, machine: Machine, nodes_N: Floats) -> Floats:
    """At a fixed global batch; where memory is short, gradients are accumulated before they are exchanged.

    A node is rented whole. All of its GPUs are used, but never more than there are samples; alone, a node may also be
    used in part, if that is faster.
    """
    parts = np.arange(1.0, min(machine.gpus, batch) + 1.0)
    gpus_N = np.minimum(nodes_N * machine.gpus, float(batch))
    nodes, gpus = np.concatenate((np.ones(len(parts)), nodes_N)), np.concatenate((parts, gpus_N))
    each = np.ceil(batch / gpus)  # all wait for the GPU with the most samples
    steps = np.ceil(each / pace.max_local)
    local = np.ceil(each / steps)
    one = np.ones(len(local))
    step_s = pace.step_s(np.concatenate((np.column_stack((nodes, gpus, local)), np.column_stack((one, one, local)))))
    full_s, compute_s = step_s[: len(local)], step_s[len(local) :]
    rate = batch / (full_s + (steps - 1.0) * compute_s)
    rate_N = np.where(gpus_N > (nodes_N - 1) * machine.gpus, rate[len(parts) :], 0.0)  # else whole nodes would be idle
    rate_N[0] = rate[: len(parts)].max()
    return np.asarray(rate_N)


def _exchange_s(curve: Curve, nodes: Floats, gpus: Floats, machine: Machine, gpu: Gpu | None) -> Floats:
    """Seconds to add up gradients, before overlap."""
    if curve.fitted:
        return _fitted_exchange_s(curve, nodes, gpus) + _slower_s(curve, nodes, machine, curve.gbit_per_s)
    link = max(gpu.nvlink_gb_per_s / 2.0, gpu.pcie_gb_per_s) if gpu else 16.0  # one way
    network = machine.gbit_per_s * BYTES_PER_GBIT
    bytes_per_s = np.where(nodes > 1, network, link * GB) * LINK_SHARE
    return np.asarray(2.0 * (gpus - 1.0) * (curve.gradient_bytes / gpus / bytes_per_s + LATENCY_S))


def _fitted_exchange_s(curve: Curve, nodes: Floats, gpus: Floats) -> Floats:
    """As it was measured."""
    wide = np.maximum(gpus - 2.0, 0.0)
    inside_s = curve.node_alpha_s + curve.node_beta_s * wide
    between_s = curve.net_alpha_s + curve.net_beta_s * wide
    return np.asarray(np.where(gpus > 1, np.where(nodes > 1, between_s, inside_s), 0.0))


def _slower_s(curve: Curve, nodes: Floats, machine: Machine, usual_gbit_per_s: float) -> Floats:
    """Extra time of the same bytes between nodes over a network slower than usual; a faster one is not believed."""
    slower = 1.0 / machine.gbit_per_s - 1.0 / usual_gbit_per_s if usual_gbit_per_s else 0.0
    s_per_byte = max(slower, 0.0) / (BYTES_PER_GBIT * LINK_SHARE)
    return np.asarray(2.0 * (nodes - 1.0) / nodes * curve.gradient_bytes * s_per_byte)
