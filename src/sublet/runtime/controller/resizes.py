"""For what reason a job changes its width, for the figures."""

from __future__ import annotations

from collections.abc import Mapping

from sublet.domain.actions import ResizeJob
from sublet.kernel.cluster import Node, NodePhase
from sublet.runtime.controller.gauges import ResizeCause
from sublet.runtime.controller.records import JobRecord

__all__ = ["why_resize"]


def why_resize(record: JobRecord, action: ResizeJob, nodes: Mapping[str, Node]) -> ResizeCause:
    """It has lost a node, will lose one, or others need fewer or more."""
    if record.group.broken:
        return ResizeCause.LOSS
    here = (nodes[worker.node_id] for worker in record.group.workers.values() if worker.node_id in nodes)
    if any(node.phase is NodePhase.NOTICED for node in here):
        return ResizeCause.NOTICE
    wider = sum(gpus for _, gpus in action.placement) >= record.group.size
    return ResizeCause.GROW if wider else ResizeCause.SHRINK
