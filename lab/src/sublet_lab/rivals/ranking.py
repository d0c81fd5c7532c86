"""Order of jobs: keys for ordering jobs, and granting requests in that order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from sublet.domain.plan import JobState, Pool
from sublet.domain.shape import packed
from sublet.planning.draft import Draft

TIRESIAS_THRESHOLD_GPU_S = 57_600.0  # 16 GPU-hours: what the Pollux artifact's Tiresias uses
TOLERANCE_GPU_S = 1.0  # woken at the very moment of demotion, a sum of floats may fall short of it by a hair
OVERTAKERS = 64  # how far behind the first misfit to look for smaller jobs that fit: bounds the work of one decision


@dataclass(frozen=True, slots=True)
class RemainingTime:
    """Seconds to the end on the requested GPUs, packed on nodes of one reference pool."""

    gpu: str
    gpus_per_node: int

    @classmethod
    def on(cls, pool: Pool) -> RemainingTime:
        """Measured on this pool."""
        return cls(pool.gpu, pool.gpus_per_node)

    def __call__(self, state: JobState) -> float:
        """For a job that waits: its work stands still."""
        return self.after(state, state.done)

    def after(self, state: JobState, done: float) -> float:
        """For a job that has come as far as `done`."""
        job = state.job
        return job.speed.seconds(self.gpu, packed(job.gpus, self.gpus_per_node), done, job.work)


def grant_in_order(
    draft: Draft,
    waiting_key: Callable[[JobState], float],
    active_rank: Callable[[JobState], float],
    *,
    overtakers: float = OVERTAKERS,
) -> list[tuple[JobState, int]]:
    """Give requested sizes in order of rank, taking GPUs from jobs that rank behind; smaller jobs may fill gaps.

    Returns the GPUs of each job then. `waiting_key` orders the queue and must not depend on time; `active_rank` ranks
    jobs with GPUs on the same scale.
    """
    snapshot = draft.snapshot
    active = sorted((active_rank(state), state.seq, state) for state in snapshot.active.values())
    queue = ((waiting_key(state), state.seq, state) for state in snapshot.waiting.by(waiting_key))
    free = dict(draft.most)
    granted: list[tuple[JobState, str, int]] = []
    losers = {state.job.id: state for _, _, state in active}
    misfits = 0
    for _, _, state in heapq.merge(active, queue):
        gpus = draft.width(state.job)
        pool = _pool_for(state, gpus, free) if gpus else None
        if pool is None:
            misfits += 1
            if misfits > overtakers:
                break
            continue
        free[pool] -= gpus
        losers.pop(state.job.id, None)
        granted.append((state, pool, gpus))
        if not any(free.values()):
            break
    for state in losers.values():
        draft.take(state, "gives way to jobs that rank before it")
    for state, pool, gpus in granted:
        draft.give(state, pool, gpus)
    return [(state, gpus) for state, _, gpus in granted]


def _pool_for(state: JobState, gpus: int, free: dict[str, float]) -> str | None:
    """Where it is, if it can stay; else the first pool that has the room."""
    shape = state.shape
    if shape is not None and free[shape.pool] >= gpus and state.job.may_run_in(shape.pool):
        return shape.pool
    return next((name for name, room in free.items() if room >= gpus and state.job.may_run_in(name)), None)
