"""The policy of a profiling run, or of a rehearsal: the one job is as wide, and has the batch, as its course says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sublet.domain.plan import Plan, Snapshot, arrival
from sublet.domain.shape import Shape
from sublet.planning.draft import Draft
from sublet.runtime.profiling.course import Stop

__all__ = ["Goes", "Walk"]

LOOK_S = 0.2  # between two looks where the course has come to


class Goes(Protocol):
    """From stop to stop."""

    at: Stop | None  # None = it is through


@dataclass(frozen=True, slots=True)
class Walk:
    """Unlike other policies it has a memory: its course."""

    course: Goes

    def decide(self, snapshot: Snapshot) -> Plan:
        """The shape of where the course is now; what the job has stays when it is through."""
        draft, at = Draft(snapshot), self.course.at
        for state in (*snapshot.active.values(), *snapshot.waiting.by(arrival)):
            pool = draft.pool_with_room(state.job, 1) if state.shape is None else state.shape.pool
            if at is not None and pool is not None:
                draft.put(state, Shape(pool, at.width, batch=at.batch), f"to be measured: {at}")
        return draft.plan(ask_again_s=snapshot.now_s + LOOK_S)
