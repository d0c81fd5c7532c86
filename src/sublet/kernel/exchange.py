"""GPUs on demand that jobs were promised and do not have, in pools of both markets.

Two jobs may wait for one another: the first holds spot GPUs that it will leave for those on demand, the second sits on
one of these without need and would go back to spot, where the first one is. Nothing else is under way then, and what is
free on demand would be paid for and idle. So the first takes what is free, which is less than it was promised, and the
second goes where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Placement, Shape
from sublet.kernel.changing import IN_TRANSIT
from sublet.kernel.cluster import Cluster
from sublet.kernel.supply import Supply

__all__ = ["half_way", "owed"]


def owed(
    cluster: Cluster, pool: str, active: Iterable[JobState], placement: Mapping[str, Placement], but_to: str = ""
) -> int:
    """GPUs on demand that are still to come, in all: also to those that began without their spares."""
    gpus = 0
    for state in active:
        shape = state.shape
        if shape is not None and shape.pool == pool and shape.steady and state.job.id != but_to:
            gpus += max(0, shape.steady - cluster.on_demand(placement.get(state.job.id, ())))
    return gpus


def half_way(
    supply: Supply, pool: str, line: Iterable[str], active: Mapping[str, JobState], placement: Mapping[str, Placement]
) -> tuple[JobState, Shape, Placement] | None:
    """The first in line with as many GPUs as it was promised, and what is free on demand for spot GPUs of its own.

    None unless it has to be: other nodes of the pool may be on their way, or jobs that will leave some.
    """
    cluster, coming = supply.cluster, supply.coming(supply.pools[pool])
    free = cluster.free_on_demand(pool) if supply.pools[pool].is_mixed else 0
    if not free or coming or any(state.phase in IN_TRANSIT for state in active.values()):
        return None
    for job_id in line:
        state, held = active.get(job_id), placement.get(job_id, ())
        shape, had = None if state is None else state.shape, cluster.on_demand(held)
        if state is None or shape is None or state.phase is not Phase.RUNNING or state.gpus != shape.gpus:
            continue
        if had + free < shape.steady and cluster.healthy(held) == held:
            nearer = replace(shape, steady=had + free)
            found = cluster.rearrange(pool, held, shape.gpus, steady=nearer.steady)
            if found is not None:
                return state, nearer, found
    return None
