"""The batch for a worker count, for policies that choose worker counts alone."""

from __future__ import annotations

from sublet.domain.plan import JobState, Pool
from sublet.domain.shape import Shape, packed

__all__ = ["batch_for"]


def batch_for(state: JobState, pool: Pool, gpus: int, current: Shape | None) -> int | None:
    """The batch that it should have on so many GPUs, if its speed says so; `current` is what it has or was given.

    A speed that knows says it as `best_batch(gpu, spread, had)`: the best batch, or the one that it `had` if that is
    nearly as good. None = as it has it now.
    """
    best = getattr(state.job.speed, "best_batch", None)  # asked of every job: to look for a protocol takes 25 us
    if best is None:
        return None
    had = None if current is None else current.batch
    found: int | None = best(pool.gpu, packed(gpus, pool.gpus_per_node), had)
    return found
