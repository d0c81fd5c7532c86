"""The nodes that are rented, on their way, or went lately, as users see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sublet.kernel.cluster import Node, NodePhase
from sublet.kernel.kernel import Kernel
from sublet.kernel.ledger import Lease
from sublet.perf.preemption.reclaims import believe_reclaims
from sublet.runtime.controller_api.views import NodeStatus, NodeView

GONE_SHOWN_S = 600.0  # cloud: how long a node that is gone is still listed
MOST_GONE = 50
STATUSES = {
    NodePhase.REQUESTED: NodeStatus.RENTING,
    NodePhase.READY: NodeStatus.READY,
    NodePhase.NOTICED: NodeStatus.NOTICED,
    NodePhase.RELEASING: NodeStatus.RELEASING,
}


def node_views(
    kernel: Kernel, now_s: float, until_s: Mapping[str, float], silent: Collection[str] = ()
) -> list[NodeView]:
    """Every node, and those that went lately; `until_s` says of some when they will be taken; `silent` are cut off."""
    offering = kernel.supply.offering
    hazards = {offer_id: believe_reclaims([offering.state(offer_id, now_s)]).per_h for offer_id in offering.offers}
    held = [
        _held_node(
            kernel,
            node,
            kernel.ledger.ordered_s(node.id) or 0.0,
            until_s.get(node.id),
            silent=node.id in silent,
            hazard_per_h=hazards.get(node.offer.id, 0.0),
        )
        for node in kernel.cluster.nodes.values()
    ]
    gone = [
        _gone_node(kernel, lease)
        for lease in kernel.ledger.closed[-MOST_GONE:]
        if now_s - _end_s(lease) < GONE_SHOWN_S and not lease.void
    ]
    return [*held, *gone]


def _held_node(
    kernel: Kernel, node: Node, since_s: float, until_s: float | None, *, silent: bool, hazard_per_h: float
) -> NodeView:
    cut_off = silent and node.phase is NodePhase.REQUESTED
    return {
        "id": node.id,
        "offer_id": node.offer.id,
        "market": node.offer.market,
        "gpu": node.offer.gpu,
        "phase": NodeStatus.SILENT if cut_off else STATUSES[node.phase],
        "usd_per_h": kernel.ledger.price(node.offer.id).usd_per_h,
        "since_s": since_s,
        "until_s": until_s,
        "slots": node.offer.gpus_per_node,
        "job_ids": sorted(node.jobs),
        "hazard_per_h": hazard_per_h,
    }


def _gone_node(kernel: Kernel, lease: Lease) -> NodeView:
    offer = kernel.supply.offering.every[lease.offer_id]
    return {
        "id": lease.node_id,
        "offer_id": offer.id,
        "market": offer.market,
        "gpu": offer.gpu,
        "phase": NodeStatus.GONE,
        "usd_per_h": lease.last_price.usd_per_h,
        "since_s": lease.start_us / 1e6,
        "until_s": _end_s(lease),
        "slots": offer.gpus_per_node,
        "job_ids": [],
        "hazard_per_h": 0.0,
    }


def _end_s(lease: Lease) -> float:
    return (lease.end_us or 0) / 1e6
