"""A job whose GPUs change: its state with others under it, and whether it trains on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.domain.actions import Action, ResizeJob
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Placement, Shape
from sublet.kernel.values_json import Unrecorded

__all__ = ["IN_TRANSIT", "as_ordered", "trains_on", "with_gpus"]

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
