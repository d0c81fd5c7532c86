"""The survivors of a job when a node is taken: whether it trains on in a smaller form while others are on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.domain.actions import Action
from sublet.domain.job import Change
from sublet.domain.plan import JobState, Phase
from sublet.domain.seats import is_spare
from sublet.domain.shape import Placement, Shape
from sublet.kernel.changing import trains_on, with_gpus
from sublet.kernel.cluster import Cluster
from sublet.kernel.values_json import Unrecorded

__all__ = ["is_spare_of", "pays", "shape_of_survivors", "without_spares"]


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


def shape_of_survivors(state: JobState, kept: Placement, steady: int, recorded: Sequence[Action]) -> Shape | None:
    """The shape of a job that was promised more on these, of which so many are on demand; None = it cannot train.

    A grid is that of the promise, or else the one that it ran in, where it fits: any other is for a plan to weigh.
    """
    gpus, shape, ran = sum(count for _, count in kept), state.shape, state.runs_in
    if shape is None or ran is None or shape.pool != ran.pool or gpus < state.job.min_gpus:
        return None
    if steady < state.job.min_on_demand:
        return None
    if shape.grid is not None:
        grid = next((each for each in (shape.grid, ran.grid) if each is not None and each.gpus <= gpus), None)
        if grid is None:
            return None
        shape = replace(shape, grid=grid)
    smaller = replace(shape, gpus=gpus, steady=min(shape.steady, steady))
    return smaller if trains_on(state, smaller, kept, recorded) else None


def pays(state: JobState, smaller: Shape, boot_s: float) -> bool:
    """Whether a new node takes longer to come than the two pauses, to be smaller and to be whole again, take time."""
    job, was, shape = state.job, state.runs_in, state.shape
    if isinstance(job.speed, Unrecorded):
        return True  # it was, or it would not be in the record
    if job.pauses is None or was is None or shape is None:
        return boot_s > 2.0 * job.restart_s
    lost = max(0, was.gpus - smaller.gpus)
    away_s = job.pause_s(Change(was=was, now=smaller, lost=lost, left_s=state.left_s))
    return boot_s > away_s + job.pause_s(Change(was=smaller, now=shape))
