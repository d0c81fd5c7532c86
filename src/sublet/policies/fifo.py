"""First come, first served, at the requested size."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from sublet.domain.plan import JobState, Phase, Plan, Snapshot, arrival
from sublet.planning.draft import Draft
from sublet.planning.terms import most_gpus


@dataclass(frozen=True, slots=True)
class Fifo:
    """First come, first served, at the requested size: no job overtakes, none is resized."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Start the head of the queue for as long as it fits. O(jobs that run), whatever the length of the queue."""
        draft = Draft(snapshot, most_gpus(snapshot, nobody_yields=True))
        for state in snapshot.active.values():
            draft.keep(state)
        queue: Iterable[JobState] = snapshot.waiting.by(arrival)
        if min(draft.room.values()) < 0:
            queue = heapq.merge(queue, self._send_back_the_last(draft), key=_seq)
        for state in queue:
            gpus = draft.width(state.job)
            pool = draft.pool_with_room(state.job, gpus)
            if pool is None or gpus == 0:
                if state.job.pools:
                    continue  # those behind it may run where it may not
                break
            draft.give(state, pool, gpus)
        return draft.plan()

    def _send_back_the_last(self, draft: Draft) -> list[JobState]:
        """Supply fell: the latest arrivals of a pool give their GPUs back until the rest fits.

        Those that hold none have nothing to leave, so that nothing will be heard of them: they queue at once.
        """
        sent_back = []
        for state in sorted(draft.snapshot.active.values(), key=lambda state: -state.seq):
            if state.shape is not None and draft.room[state.shape.pool] < 0:
                draft.take(state, "supply fell and it came last")
                if state.phase is Phase.WAITING:
                    sent_back.append(state)
        return sent_back[::-1]


def _seq(state: JobState) -> int:
    return state.seq
