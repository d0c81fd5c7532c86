"""Room for a job whose GPUs must come in blocks, each on one node: one process there has all of a block."""

from __future__ import annotations

from collections.abc import Collection

from sublet.domain.offer import Market
from sublet.domain.shape import Placement
from sublet.kernel.cluster import Cluster, Node, NodePhase

__all__ = ["find_blocks", "is_in_blocks"]


def is_in_blocks(placement: Placement, block: int) -> bool:
    """Every node has whole blocks of it."""
    return all(gpus % block == 0 for _, gpus in placement)


def find_blocks(
    cluster: Cluster,
    pool: str,
    kept: Placement,
    gpus: int,
    block: int,
    *,
    shunned: Collection[str] = frozenset(),
    closed: Collection[Market] = (),
) -> Placement | None:
    """`gpus` of them in whole blocks, on its own nodes first, then on spot, on as few nodes as can be; None = no room.

    Nothing more is taken of nodes that are shunned, nor of markets that are `closed`.
    """
    missing, share = gpus // block, {}
    for node_id, held in kept:
        share[node_id] = min(missing, held // block)
        missing -= share[node_id]

    def more_on(node: Node) -> int:
        shut = node.id in shunned or node.offer.market in closed
        return 0 if shut else node.free // block

    ready = [node for node in cluster.nodes.values() if node.phase is NodePhase.READY and node.offer.pool == pool]
    ready.sort(key=lambda n: (n.id not in share, n.offer.market is Market.ON_DEMAND, -more_on(n), n.number))
    for node in ready:
        more = min(missing, more_on(node))
        share[node.id] = share.get(node.id, 0) + more
        missing -= more
    return None if missing else tuple((node_id, count * block) for node_id, count in share.items() if count)
