"""Which batch goes with a width, for policies that choose widths alone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sublet.domain.plan import JobState, Pool
from sublet.domain.shape import Shape, Spread, packed

__all__ = ["batch_for"]


@runtime_checkable
class Batched(Protocol):
    """A speed that knows which batch makes the most of a width."""

    def best_batch(self, gpu: str, spread: Spread, had: int | None) -> int | None:
        """The best batch, or the one that it `had` if that is nearly as good; None = as it has it now."""
        ...


def batch_for(state: JobState, pool: Pool, gpus: int, current: Shape | None) -> int | None:
    """The batch that it should have on so many GPUs, if its speed says so; `current` is what it has or was given."""
    speed = state.job.speed
    if not isinstance(speed, Batched):
        return None
    had = None if current is None else current.batch
    return speed.best_batch(pool.gpu, packed(gpus, pool.gpus_per_node), had)
