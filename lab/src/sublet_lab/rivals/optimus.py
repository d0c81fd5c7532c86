"""Optimus (EuroSys 2018), as the artifact of Pollux (OSDI 2021) defines it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sublet.domain.job import Job
from sublet.domain.plan import JobState, Packing, Plan, Pool, Snapshot, arrival
from sublet.domain.quantity import positive
from sublet.domain.shape import packed
from sublet.planning.draft import Draft
from sublet.planning.widths import jobs_by_pool

# (job, pool, work done) -> seconds left on the fewest GPUs that it can run on, on one more, and so on up to the most
LeftS = Callable[[Job, Pool, float], Iterator[float]]


def speed_left_s(job: Job, pool: Pool, done: float) -> Iterator[float]:
    """The job's own speed, packed on as few nodes as possible."""
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        yield job.speed.seconds(pool.gpu, packed(gpus, pool.gpus_per_node), done, job.work)


@dataclass(frozen=True, slots=True)
class Optimus:
    """One GPU each in order of arrival, then one at a time to the job whose remaining time it shortens most."""

    left_s: LeftS = speed_left_s  # how long a job is expected to take yet
    round_s: float = 60.0  # what is left changes as jobs train: look again after this long

    def __post_init__(self) -> None:
        positive("round_s", self.round_s)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Greedy, one GPU at a time; restarts are not weighed. O(GPUs log jobs)."""
        draft = Draft(snapshot)
        in_order = iter(sorted(snapshot.active.values(), key=lambda state: state.seq))
        for name, group in jobs_by_pool(in_order, snapshot.waiting.by(arrival), draft.most).items():
            group.sort(key=lambda state: state.seq)
            widths = self._widths(group, snapshot.pools[name], draft.most[name], snapshot.now_s)
            for gpus, _, state in sorted(zip(widths, range(len(group)), group, strict=True)):  # the smallest first
                if gpus:
                    draft.give(state, name, gpus)
                else:
                    draft.take(state, "more jobs than GPUs, and it came last")
        again_s = snapshot.now_s + self.round_s if snapshot.active or snapshot.waiting else None
        return replace(draft.plan(ask_again_s=again_s), packing=Packing.EMPTIEST)

    def _widths(self, group: list[JobState], pool: Pool, gpus: float, now_s: float) -> list[int]:
        """The smallest worker counts as far as they go, then the GPU that saves most time, again and again."""
        widths, free = [0] * len(group), gpus
        gains: list[tuple[float, int, float, Iterator[float]]] = []  # (-seconds saved, job, seconds then, and wider)
        for number, state in enumerate(group):
            over = state.shape is not None and state.remaining_at(now_s) <= 0.0  # its end is on its way: let it be
            need = state.shape.gpus if over and state.shape is not None else state.job.min_gpus
            if need <= free:
                widths[number], free = need, free - need
                left_s = self.left_s(state.job, pool, state.done_at(now_s))
                here_s, then_s = next(left_s), next(left_s, math.inf)
                if then_s < here_s and not over:
                    gains.append((then_s - here_s, number, then_s, left_s))
        heapq.heapify(gains)
        while gains and free > 0:
            _, number, here_s, left_s = gains[0]
            widths[number], free = widths[number] + 1, free - 1
            then_s = next(left_s, math.inf)
            if then_s < here_s:
                heapq.heapreplace(gains, (then_s - here_s, number, then_s, left_s))
            else:
                heapq.heappop(gains)
        return widths
