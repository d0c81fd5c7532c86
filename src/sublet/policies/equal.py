"""Equal split: everyone gets the same number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import JobState, Plan, Snapshot, arrival
from sublet.planning.draft import Draft
from sublet.planning.widths import jobs_by_pool


@dataclass(frozen=True, slots=True)
class Equal:
    """Equal split: every job gets the same number of GPUs, give or take one (processor sharing)."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Fill all jobs to one level; the job that holds the spare GPU of an uneven split keeps it."""
        draft = Draft(snapshot)
        in_order = iter(sorted(snapshot.active.values(), key=lambda state: state.seq))
        for pool, group in jobs_by_pool(in_order, snapshot.waiting.by(arrival), draft.most).items():
            shares = _shares(group, draft.most[pool])
            for state in sorted(group, key=lambda state: shares[state.job.id] > state.gpus):  # those that give first
                if shares[state.job.id]:
                    draft.give(state, pool, shares[state.job.id])
                else:
                    draft.take(state, "more jobs than GPUs, and it came last")
        return draft.plan()


def _shares(group: list[JobState], gpus: float) -> dict[str, int]:
    """GPUs per job: the fewest in order of arrival as far as they go, then level by level upwards."""
    shares: dict[str, int] = {}
    left = gpus
    for state in group:
        need = state.job.min_gpus
        shares[state.job.id] = need if need <= left else 0
        left -= shares[state.job.id]
    growing = [state for state in group if shares[state.job.id]]
    while left > 0:
        growing = [s for s in growing if shares[s.job.id] < s.job.max_gpus]
        if not growing:
            break
        low = min(shares[s.job.id] for s in growing)
        lowest = [s for s in growing if shares[s.job.id] == low]
        if left < len(lowest):  # an uneven rest goes to those that have that much already
            lowest = sorted(lowest, key=lambda s: (-min(s.gpus, low + 1), s.seq))[: int(left)]
        for state in lowest:
            shares[state.job.id] += 1
        left -= len(lowest)
    return shares
