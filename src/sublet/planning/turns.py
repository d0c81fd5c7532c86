"""First come, first served, each in the shape of its choice: what policies share that look at one job at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import merge

from sublet.domain.plan import JobState, Pool, Snapshot, arrival
from sublet.domain.shape import Shape
from sublet.perf.gridded import Gridded
from sublet.planning.draft import Draft
from sublet.planning.widths import batch_for, runnable

TOO_LITTLE = "earlier jobs left too few GPUs"
Choose = Callable[[JobState, Pool, int], Shape | None]  # the job, where, and how many GPUs are left for it there


def serve_in_turn(snapshot: Snapshot, choose: Choose) -> Draft:
    """In order of arrival, the choice of each among what those before it left; if it can, in its own pool.

    A job that finds nothing because some of its GPUs are about to be taken stays until they are.
    Cost: O(jobs that run), whatever the length of the queue.
    """
    draft = Draft(snapshot)
    left = dict(draft.most)
    unserved = dict(snapshot.active)
    for state in _in_order(snapshot):
        if max(left.values()) < 1 and not snapshot.falling:
            break
        unserved.pop(state.job.id, None)
        shape = _first_choice(state, snapshot.pools, left, choose)
        if shape is not None:
            left[shape.pool] -= shape.gpus
            draft.put(state, shape)
        elif (pool := _stays_in(state, left, snapshot.falling.get(state.job.id, 0))) is not None:
            left[pool] -= state.gpus - snapshot.falling[state.job.id]
        else:
            draft.take(state, TOO_LITTLE)
    for state in unserved.values():
        draft.take(state, TOO_LITTLE)
    return draft


def _stays_in(state: JobState, left: Mapping[str, float], falling: int) -> str | None:
    """The pool where it trains on, as it is, until `falling` GPUs of its own are taken; None = it lacks others too."""
    shape = state.shape
    if shape is None or not falling or state.job.lead_s != 0.0 or shape.gpus != state.gpus:
        return None  # a job that needs time to save goes at the notice
    enough = left[shape.pool] < state.gpus <= left[shape.pool] + falling
    return shape.pool if enough else None


def _in_order(snapshot: Snapshot) -> Iterator[JobState]:
    return merge(sorted(snapshot.active.values(), key=_seq), snapshot.waiting.by(arrival), key=_seq)


def _seq(state: JobState) -> int:
    return state.seq


def _first_choice(
    state: JobState, pools: Mapping[str, Pool], left: Mapping[str, float], choose: Choose
) -> Shape | None:
    job = state.job
    own = None if state.shape is None else state.shape.pool
    for name in sorted((name for name in pools if job.may_run_in(name)), key=lambda name: name != own):
        gpus = int(min(left[name], job.max_gpus))
        if gpus >= job.min_gpus and (shape := choose(state, pools[name], gpus)) is not None:
            return shape
    return None


def fastest_shape(state: JobState, pool: Pool, gpus: int) -> Shape | None:
    """The fastest of what fits; a job that knows grids keeps what is over as spares."""
    speed = state.job.speed
    if isinstance(speed, Gridded):
        grid = speed.grid(speed.profile.fastest(gpus))
        return None if grid is None else Shape(pool.name, gpus, grid=grid)
    choices = runnable(state, pool, gpus, state.done)
    if not choices:
        return None
    best = max(choices, key=lambda choice: (choice.rate, -choice.gpus))
    return Shape(pool.name, best.gpus, batch=batch_for(state, pool, best.gpus, state.shape))
