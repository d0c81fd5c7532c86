"""What policies see of jobs whose purses are low: none that cannot be paid for, and no width that cannot.

Policies weigh time against the money of all; whose money it is is none of their business. So a job that those who pay
for it cannot pay for is not shown, and one that they can pay for in part is shown no wider than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from sublet.domain.job import Job
from sublet.domain.money import microseconds
from sublet.domain.plan import JobState, Pool
from sublet.domain.purses import Holder, Level
from sublet.kernel.allowances import PurseTree
from sublet.kernel.shares import ending_grains, payers
from sublet.kernel.supply import Supply
from sublet.kernel.waiting import Waiting

__all__ = ["Payable", "PurseView"]

KEPT_BACK = 2  # times what leaving may cost: as long as that is left, nobody has to leave


class PurseView:
    """The tree at one instant."""

    def __init__(self, tree: PurseTree, supply: Supply, active: Iterable[JobState], now_s: float) -> None:
        self._tree, self._supply, self._now_s = tree, supply, now_s
        now_us = microseconds(now_s)
        keeps = [holder for holder in tree.allowed if holder.level not in (Level.ORG, Level.FILE)]
        self._left = {holder: tree.left(holder, now_us, KEPT_BACK) for holder in keeps}
        for state in active:  # what was promised will be held
            for holder in payers(state.job):
                if holder in self._left:
                    self._left[holder] -= self._promised(state)

    def _promised(self, state: JobState) -> int:
        shape = state.shape
        if shape is None or shape.pool not in self._supply.pools:
            return 0
        here = state.gpus if state.runs_in is not None and state.runs_in.pool == shape.pool else 0
        return max(0, shape.gpus - here) * self._per_gpu(self._supply.pools[shape.pool])

    def _per_gpu(self, pool: Pool) -> int:
        """Grains that are kept back for one GPU, at the most."""
        return max(ending_grains(self._supply.offers[o], 1, KEPT_BACK) for o in pool.offer_ids)

    def active(self, active: Mapping[str, JobState]) -> Mapping[str, JobState]:
        """Jobs with a shape: none is shown narrower than that."""
        return {job_id: self.shown(state) or state for job_id, state in active.items()}

    def waiting(self, waiting: Waiting) -> Payable:
        """Those that could be paid for."""
        return Payable(waiting, self)

    def shown(self, state: JobState) -> JobState | None:
        """As a policy is to see it; None = not at all."""
        job, limited = state.job, self._tree.limited(state.job)
        if not limited:
            return state
        if all(holder.level is Level.FILE for holder in limited):  # how wide it may be is its controller's to say
            return state if state.gpus or state.shape or self.held_by(job) is None else None
        now = max(state.gpus, 0 if state.shape is None else state.shape.gpus)
        room = self._room(job, limited)
        if now:
            most = now if self._tree.is_aside(job.id, self._now_s) else now + max(0, min(room.values(), default=0))
            return _narrowed(state, most, job.pools)
        if self.held_by(job) is not None:
            return None
        fits = {pool: gpus for pool, gpus in room.items() if gpus >= job.min_gpus}
        return _narrowed(state, min(fits.values()), job.pools if len(fits) == len(room) else tuple(fits))

    def held_by(self, job: Job) -> Holder | None:
        """Whose purse keeps a job that holds nothing from starting; None = nobody's does."""
        limited, shares = self._tree.limited(job), self._tree.shares
        if not limited:
            return None
        for holder in limited:
            most = self._tree.allowed[holder].most
            if most is not None and len(shares.jobs(holder)) >= most:
                return holder
            if holder.level is Level.FILE:
                continue
            if not any(gpus >= job.min_gpus for gpus in self._room(job, [holder]).values()):
                return holder
        return limited[-1] if self._tree.is_aside(job.id, self._now_s) else None

    def _room(self, job: Job, limited: Iterable[Holder]) -> dict[str, int]:
        """GPUs that they can pay for, in each pool where it may run."""
        left = max(0, min(self._left[holder] for holder in limited if holder in self._left))
        found = {}
        for name in job.pools or self._supply.pools:
            if (pool := self._supply.pools.get(name)) is not None:
                per_gpu = self._per_gpu(pool)
                found[name] = left // per_gpu if per_gpu else job.max_gpus
        return found


def _narrowed(state: JobState, most: int, pools: tuple[str, ...]) -> JobState:
    job = state.job
    if most >= job.max_gpus and pools == job.pools:
        return state
    most = min(most, job.max_gpus)
    return replace(state, job=replace(job, gpus=min(job.gpus, most), max_gpus=most, pools=pools))


class Payable:
    """The waiting jobs that could be paid for; each is looked at when it is walked by."""

    def __init__(self, waiting: Waiting, view: PurseView) -> None:
        self._waiting, self._view = waiting, view
        self._count: int | None = None

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self.by(_arrival))
        return self._count

    def by(self, key: Callable[[JobState], float]) -> Iterator[JobState]:
        """As `Waiting.by`."""
        shown = (self._view.shown(state) for state in self._waiting.by(key))
        return (state for state in shown if state is not None)

    def frozen(self) -> Waiting:
        """A copy that later events do not touch."""
        copy = Waiting()
        for state in self.by(_arrival):
            copy.add(state)
        return copy


def _arrival(state: JobState) -> float:
    return state.seq
