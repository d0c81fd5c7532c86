"""A job whose GPUs change: its state with others under it, and whether it trains on them, or on what a loss left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.domain.actions import Action, ResizeJob
from sublet.domain.job import Change
from sublet.domain.plan import JobState, Phase
from sublet.domain.seats import is_spare
from sublet.domain.shape import Placement, Shape
from sublet.kernel.cluster import Cluster
from sublet.kernel.values_json import Unrecorded

IN_TRANSIT = frozenset({Phase.STARTING, Phase.RESIZING, Phase.STOPPING})


def with_gpus(
    state: JobState,
    placement: Placement,
    phase: Phase,
    now_s: float,
    *,
    generation: int | None = None,
    into: tuple[Shape, str] | None = None,
) -> JobState:
    """The state with its work and service brought up to now, and other GPUs under it: `into` a shape, of a kind."""
    runs_in, gpu = (state.runs_in, state.gpu) if into is None else into
    spread = tuple(gpus for _, gpus in placement)
    stints = state.stints
    if state.gpus and now_s > state.held_since_s:
        stints = (*stints, (state.held_since_s, now_s, state.gpus))
    return JobState(
        job=state.job,
        seq=state.seq,
        phase=phase,
        shape=state.shape,
        runs_in=runs_in if placement else None,
        gpu=gpu,
        gpus=sum(spread),
        spread=spread,
        done=state.done_at(now_s),
        as_of_s=now_s,
        gpu_s=state.attained_gpu_s(now_s),
        held_since_s=now_s,
        stints=stints,
        generation=state.generation if generation is None else generation,
        left_s=state.pause_left_s(now_s) if placement else 0.0,
        lies_in=state.lies_in if runs_in is None else runs_in.pool,
    )


def as_ordered(ordered: Shape, shape: Shape) -> bool:
    """It needs no order: which of its nodes are on demand is nothing to its workers, unless they sit in a grid."""
    return ordered == (shape if shape.grid is not None else replace(shape, steady=ordered.steady))


def trains_on(state: JobState, shape: Shape, kept: Placement, recorded: Sequence[Action]) -> bool:
    """Some worker counts are not for everybody. A log does not say which, but whether a job was left on this one."""
    if isinstance(state.job.speed, Unrecorded):
        moves = (order for order in recorded if isinstance(order, ResizeJob))
        return any((order.job_id, order.placement) == (state.job.id, kept) for order in moves)
    return state.job.speed_on(shape).rate(state.gpu, tuple(count for _, count in kept), state.done) > 0.0


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
