"""The shape of a job as its workers are told it, and the reason of a resize."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from sublet.domain.actions import ResizeJob
from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.shape import Grid, Placement, Shape, first_gpus
from sublet.domain.units import GIB
from sublet.kernel.cluster import Node, NodePhase
from sublet.kernel.kernel import Kernel
from sublet.market.catalogue import load_gpus
from sublet.perf.gridded import Gridded
from sublet.runtime.controller.memory import JobRecord
from sublet.runtime.controller.watch import ResizeCause
from sublet.runtime.group.places import Form


def told(kernel: Kernel, record: JobRecord, shape: Shape | None, placement: Placement) -> tuple[Placement, Form | None]:
    """Where workers are, and their form. Spares of a job that is cut have workers, too: they wait to step in.

    A policy that knows no grids leaves the grid to the job: then it is the fastest of those that it knows.
    """
    if shape is None:
        return placement, None
    if not record.spec.cut:
        return first_gpus(placement, shape.used), None  # a group that hears of no other trains on
    here = tuple(share for share in placement if share[0] in kernel.cluster.nodes)
    on_demand = frozenset(node_id for node_id, _ in kernel.cluster.on_market(Market.ON_DEMAND, here))
    grid = shape.grid or own_grid(kernel.jobs[record.id].job, sum(gpus for _, gpus in placement), record.spec.stages)
    return placement, Form(grid, on_demand, _stated_bytes(kernel.supply.pools[shape.pool].gpu))


@cache
def _stated_bytes(gpu: str) -> int:
    """Memory of a GPU of this kind, for sessions that cannot look at theirs; 0 = not known."""
    known = load_gpus().get(gpu)
    return 0 if known is None else int(known.mem_gib * GIB)


def own_grid(job: Job, gpus: int, stages: int) -> Grid:
    """The fastest that it knows on so many; of as many parts as its owner asks for (0 = any) where it knows none."""
    speed, parts = job.speed, max(1, stages)
    grid = speed.grid(speed.profile.fastest(gpus)) if isinstance(speed, Gridded) else None
    return Grid(max(1, gpus // parts), parts) if grid is None else grid


def why_resize(record: JobRecord, action: ResizeJob, nodes: Mapping[str, Node]) -> ResizeCause:
    """It has lost a node, will lose one, or others need fewer or more."""
    if record.group.broken:
        return ResizeCause.LOSS
    here = (nodes[worker.node_id] for worker in record.group.workers.values() if worker.node_id in nodes)
    if any(node.phase is NodePhase.NOTICED for node in here):
        return ResizeCause.NOTICE
    wider = sum(gpus for _, gpus in action.placement) >= record.group.size
    return ResizeCause.GROW if wider else ResizeCause.SHRINK
