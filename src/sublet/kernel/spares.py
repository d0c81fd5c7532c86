"""A job that loses a node on which it had spares alone trains on."""

from __future__ import annotations

from dataclasses import replace

from sublet.domain.plan import JobState, Phase
from sublet.domain.seats import is_spare
from sublet.domain.shape import Placement
from sublet.kernel.changing import with_gpus
from sublet.kernel.cluster import Cluster

__all__ = ["is_spare_of", "without_spares"]


def is_spare_of(state: JobState, placement: Placement, node_id: str, cluster: Cluster) -> bool:
    """It trains without this node: no training worker is on it, nor are GPUs on demand short without it."""
    runs_in = state.runs_in
    if state.phase is not Phase.RUNNING or runs_in is None or runs_in.grid is None or not runs_in.is_seated:
        return False
    left = tuple(share for share in placement if share[0] != node_id)
    steady = max(runs_in.steady, state.job.min_on_demand)
    return is_spare(cluster.seats(placement, runs_in.grid)[node_id]) and cluster.on_demand(left) >= steady


def without_spares(state: JobState, survives: Placement, now_s: float) -> JobState:
    """It goes on as it did; a pause under way takes as long."""
    return replace(with_gpus(state, survives, Phase.RUNNING, now_s), as_of_s=max(now_s, state.as_of_s), left_s=0.0)
