"""First come, first served, at the requested size."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.planning.draft import Draft
from sublet.planning.ranking import arrival

__all__ = ["Fifo"]


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served, at the requested size: nobody overtakes, nobody is resized."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Start the head of the queue for as long as it fits. O(jobs started), whatever the length of the queue."""
        draft = Draft(snapshot)
        if min(draft.room.values()) < 0:
            self._send_back_the_last(draft)
        for state in snapshot.waiting.by(arrival):
            gpus = draft.width(state.job)
            pool = draft.pool_with_room(state.job, gpus)
            if pool is None or gpus == 0:
                if state.job.pools:
                    continue  # those behind it may run where it may not
                break
            draft.give(state, pool, gpus)
        return draft.plan()

    def _send_back_the_last(self, draft: Draft) -> None:
        """Supply fell: the latest arrivals of a pool give their GPUs back until the rest fits."""
        for state in sorted(draft.snapshot.active.values(), key=lambda state: -state.seq):
            if state.shape is not None and draft.room[state.shape.pool] < 0:
                draft.take(state, "supply fell and it came last")
