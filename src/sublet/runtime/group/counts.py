"""Worker counts that a job is known to train at, the one to go back to from a failure, and what fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sublet.domain.shape import Placement
from sublet.runtime.group.workers import Worker
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["WorkerCounts", "narrow_placement", "widest_below"]

TRIES = 2  # of a group to form at a worker count, before it is taken for one that never will


class WorkerCounts:
    """The knowledge of one job."""

    def __init__(self) -> None:
        self.worked = 0  # workers with which it last made a step; 0 = it never did
        self.widest = 0  # workers with which it ever did
        self.failures = 0  # in a row, without a step, under this order
        self.micro_batch = 0  # most samples of a worker at a time, as more did not fit; 0 = as the script has it

    def facts(self) -> dict[str, int]:
        """Facts that the next controller must find again: where it can go back to."""
        found = {"worked": self.worked, "widest": self.widest}
        return found | {"micro_batch": self.micro_batch} if self.micro_batch else found

    def restore(self, facts: Mapping[str, int]) -> None:
        """The inverse of `facts`; nothing is known of a job whose facts do not say."""
        self.worked, self.widest = facts.get("worked", 0), facts.get("widest", 0)
        self.micro_batch = facts.get("micro_batch", 0)

    def begin_order(self) -> None:
        """A new order: whatever failed before had other reasons."""
        self.failures = 0

    def note_step(self, width: int) -> None:
        """It trains."""
        self.worked, self.failures = width, 0
        self.widest = max(self.widest, width)

    def note_short(self, micro_batch: int) -> bool:
        """More than that did not fit; whether that is news."""
        if micro_batch < 1 or 0 < self.micro_batch <= micro_batch:
            return False
        self.micro_batch = micro_batch
        return True

    def back_from(self, width: int, spec: JobSpec, *, crashed: bool) -> int | None:
        """`width` failed before its first step: the worker count to go back to, None = try again.

        A script that crashes (`crashed`) is tried no narrower than it is known to work: it may just be wrong. A group
        that does not form may do so with fewer, which have nothing to exchange.
        """
        self.failures += 1
        narrow = self.worked or (0 if crashed else spec.least_workers)
        if not 0 < narrow < width or (self.failures < TRIES and not crashed):
            return None
        return narrow

    def last_resort(self, width: int, spec: JobSpec) -> int | None:
        """Its group forms no more at `width`, where it did: the worker count to try before it is given up."""
        narrow = spec.least_workers
        return narrow if self.failures >= TRIES and narrow < width else None


def widest_below(spec: JobSpec, width: int | None, back_to: int | None = None) -> int:
    """The widest that its owner allows, below `width` if there is such a one; if not, where it went `back_to`."""
    if width is None or width <= spec.least_workers:
        return (width and back_to) or spec.max_workers
    return max((size for size in spec.sizes if size < width), default=min(spec.max_workers, width - 1))


def narrow_placement(placement: Placement, width: int, workers: Iterable[Worker]) -> Placement:
    """As much of the placement as `width` workers need, first where the workers with the most steps are."""
    steps: dict[str, int] = {}
    for worker in workers:
        steps[worker.node_id] = max(worker.step, steps.get(worker.node_id, -1))
    left, found = width, []
    for node_id, gpus in sorted(placement, key=lambda part: -steps.get(part[0], -1)):
        if left > 0:
            found.append((node_id, min(gpus, left)))
            left -= gpus
    return tuple(found)
