"""Shortest remaining time first, at the requested size."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import JobState, Plan, Snapshot
from sublet.planning.draft import Draft
from sublet_lab.rivals.ranking import RemainingTime, grant_in_order


@dataclass(frozen=True, slots=True)
class Srtf:
    """Shortest remaining time first: the job that would end soonest at its requested size preempts the others."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Rank everyone by remaining time; a running job's pause to restart is not paid for by stopping it."""
        draft = Draft(snapshot)
        remaining = RemainingTime.on(next(iter(snapshot.pools.values())))

        def left_s(state: JobState) -> float:
            return remaining.after(state, state.done_at(snapshot.now_s))

        grant_in_order(draft, remaining, left_s)
        return draft.plan()
