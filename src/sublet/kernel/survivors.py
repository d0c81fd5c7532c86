"""The survivors of a job when a node is taken: whether it trains on in a smaller form while others are on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.domain.actions import Action
from sublet.domain.job import Change
from sublet.domain.plan import JobState
from sublet.domain.shape import Placement, Shape
from sublet.kernel.changing import trains_on
from sublet.kernel.values_json import Unrecorded

__all__ = ["pays", "shape_of_survivors"]


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
