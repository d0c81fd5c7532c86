"""Tiresias (NSDI 2019) with two queues, as the artifact of Pollux (OSDI 2021) defines it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sublet.domain.plan import JobState, Packing, Plan, Snapshot
from sublet.domain.quantity import at_least, positive
from sublet.planning.draft import Draft
from sublet_lab.rivals.ranking import TIRESIAS_THRESHOLD_GPU_S, TOLERANCE_GPU_S, grant_in_order


@dataclass(frozen=True, slots=True)
class _DemotedAt:
    """When a job left the first queue, at a multiple of `round_s`; 0 = it is still there."""

    threshold_gpu_s: float
    round_s: float

    def __call__(self, state: JobState) -> float:
        """The key of a waiting job, whose service stands still."""
        return self.by(state, state.held_since_s)

    def by(self, state: JobState, now_s: float) -> float:
        """The key of any job, as of now."""
        service = state.attained_gpu_s(now_s)
        enough = self.threshold_gpu_s - TOLERANCE_GPU_S
        if service <= enough:
            return 0.0
        at_s = now_s
        for since_s, until_s, gpus in reversed((*state.stints, (state.held_since_s, now_s, state.gpus))):
            service -= gpus * (until_s - since_s)
            if service <= enough:
                at_s = since_s + (self.threshold_gpu_s - service) / gpus
                break
        return math.ceil(at_s / self.round_s - 1e-9) * self.round_s if self.round_s else at_s


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Two queues, each first come, first served: a job that has had many GPU-hours goes to the end of the second."""

    threshold_gpu_s: float = TIRESIAS_THRESHOLD_GPU_S
    round_s: float = 60.0  # demotions within one round count as one, in order of arrival; 0 = to the instant

    def __post_init__(self) -> None:
        positive("threshold_gpu_s", self.threshold_gpu_s)
        at_least("round_s", self.round_s, 0.0)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Each job that fits runs at the requested size, in order; ask again when the next job is due for demotion."""
        draft, now_s = Draft(snapshot), snapshot.now_s
        demoted = _DemotedAt(self.threshold_gpu_s, self.round_s)
        granted = grant_in_order(draft, demoted, lambda state: demoted.by(state, now_s), overtakers=math.inf)
        everyone_has_gpus = len(granted) == len(snapshot.active) + len(snapshot.waiting)
        due_s = [
            now_s + (self.threshold_gpu_s - state.attained_gpu_s(now_s)) / gpus
            for state, gpus in granted
            if not demoted.by(state, now_s)
        ]
        plan = draft.plan(ask_again_s=min(due_s) if due_s and not everyone_has_gpus else None)
        return replace(plan, packing=Packing.EMPTIEST)
