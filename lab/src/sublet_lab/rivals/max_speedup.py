"""Marginal gain: the next GPUs go to the job that they speed up most."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from sublet.domain.plan import JobState, Plan, Pool, Snapshot, arrival
from sublet.planning.draft import Draft
from sublet.planning.widths import gain_steps, jobs_by_pool, worth_growing


@dataclass(frozen=True, slots=True)
class MaxSpeedup:
    """Marginal gain: the next GPUs go to the job whose speedup rises most per GPU (maximal sum of speedups)."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Greedy along each job's concave hull; a running job grows only if it ends sooner in spite of the restart."""
        draft = Draft(snapshot)
        in_order = iter(sorted(snapshot.active.values(), key=lambda state: state.seq))
        for name, group in jobs_by_pool(in_order, snapshot.waiting.by(arrival), draft.most).items():
            pool = snapshot.pools[name]
            widths = _best_widths(group, pool, draft.most[name], snapshot.now_s)
            for state in sorted(group, key=lambda state: widths.get(state.job.id, 0) > state.gpus):
                gpus = widths.get(state.job.id, 0)
                if state.shape is not None and 0 < state.shape.gpus < gpus:
                    gpus = gpus if worth_growing(state, pool, gpus, snapshot.now_s) else state.shape.gpus
                if gpus:
                    draft.give(state, name, gpus)
                else:
                    draft.take(state, "more jobs than GPUs, and it came last")
        return draft.plan()


def _best_widths(group: list[JobState], pool: Pool, gpus: float, now_s: float) -> dict[str, int]:
    """Everyone's smallest worker count in order of arrival, then the best step of all again and again.

    O(steps log jobs).
    """
    widths: dict[str, int] = {}
    left = gpus
    steps = {state.job.id: gain_steps(state, pool, gpus, now_s) for state in group}
    best: list[tuple[float, int, int, str]] = []  # (-gain, arrival, new worker count, job)

    def offer_next(state_seq: int, job_id: str) -> None:
        step = next(steps[job_id], None)
        if step is not None:
            heapq.heappush(best, (-step[0], state_seq, step[1], job_id))

    for state in group:
        offer_next(state.seq, state.job.id)
    while best and left > 0:
        _, seq, width, job_id = heapq.heappop(best)
        more = width - widths.get(job_id, 0)
        if more <= left:  # a step that does not fit ends this job's growth: later ones are larger still
            widths[job_id] = width
            left -= more
            offer_next(seq, job_id)
    return widths
