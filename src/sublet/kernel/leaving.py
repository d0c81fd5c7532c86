"""Nodes that jobs leave though the cloud does not take them: one that limps, and one that is cut off.

One that limps takes no more work, and goes when the last has left. One that is cut off counts as on its way again: it
is held and paid for, has no jobs, and is ready when it is heard. The time of that is unknown, so that its jobs do not
wait for it: where the other workers can train without it, they do. One that the cloud only says may be taken stays,
with all that is on it; its offer counts as taken from more often.
"""

from __future__ import annotations

from sublet.domain.events import NodeSilent, NodeSlow, NodeThreatened
from sublet.domain.plan import Phase
from sublet.kernel.cluster import Node
from sublet.kernel.supply import Supply
from sublet.kernel.tenancy import Tenancy


def leave(supply: Supply, tenancy: Tenancy, node: Node, event: NodeSlow | NodeSilent | NodeThreatened) -> None:
    """A node that is ready is not to be used any more, or not for now; or it may soon not be there."""
    if isinstance(event, NodeThreatened):
        supply.offering.exposure.threaten(node.offer.id, event.at_s)
        return
    if isinstance(event, NodeSlow):
        supply.mark_noticed(node)
        tenancy.line_up_tenants(node)
        return
    tenants = list(node.jobs)
    tenancy.growing.go(node, event.at_s, told=False)
    supply.cluster.lose_touch(node)  # no job is to be moved there
    tenancy.lose_node(node, event)
    node.jobs.clear()  # it is in no bucket of free GPUs
    node.free = node.offer.gpus_per_node
    supply.changed = True
    for job_id in tenants:
        state = tenancy.jobs[job_id]
        if state.phase is Phase.BROKEN and tenancy.placement.get(job_id):
            tenancy.keep_to_survivors(state)
