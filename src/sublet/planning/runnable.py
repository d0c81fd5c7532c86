"""The worker counts at which a job makes progress: its speed is above 0, whatever holes a measured table has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sublet.domain.plan import JobState, Pool
from sublet.domain.shape import packed
from sublet.planning.widths import useful_widths

__all__ = ["Runnable", "describe_stranded", "runnable", "runs_at_all", "speed_of_one"]


@dataclass(frozen=True, slots=True)
class Runnable:
    """A worker count at which a job makes progress now."""

    pool: str
    gpus: int
    rate: float  # work per second


def runnable(state: JobState, pool: Pool, most: float, done: float) -> list[Runnable]:
    """The useful worker counts of a job at which its speed is above 0, the least first; its present one among them."""
    job = state.job
    if not job.may_run_in(pool.name):
        return []
    widths = useful_widths(job, pool.gpus_per_node, most)
    shape = state.shape
    if shape is not None and shape.pool == pool.name and job.min_gpus <= shape.gpus <= min(job.max_gpus, most):
        widths = sorted({*widths, shape.gpus})
    rated = ((gpus, job.speed.rate(pool.gpu, packed(gpus, pool.gpus_per_node), done)) for gpus in widths)
    return [Runnable(pool.name, gpus, rate) for gpus, rate in rated if rate > 0.0]


def runs_at_all(state: JobState, pool: Pool, most: float, done: float) -> bool:
    """Whether there is a worker count at which its speed is above 0; it stops at the first."""
    widths = useful_widths(state.job, pool.gpus_per_node, most) if state.job.may_run_in(pool.name) else []
    return any(state.job.speed.rate(pool.gpu, packed(gpus, pool.gpus_per_node), done) > 0.0 for gpus in widths)


def speed_of_one(state: JobState, pool: Pool, done: float, choices: Iterable[Runnable]) -> float:
    """Work per second on one GPU; of a job that needs more, per GPU with the fewest on which it runs."""
    one = state.job.speed.rate(pool.gpu, (1,), done)
    return one if one > 0.0 else next((choice.rate / choice.gpus for choice in choices), 1.0)


def describe_stranded(state: JobState, pools: Sequence[str]) -> str:
    """A sentence for the owner of a job that makes no progress with any worker count that it may have."""
    job = state.job
    return f"its speed is 0 at every size from {job.min_gpus} to {job.max_gpus} GPUs of {', '.join(pools)}; it waits"
