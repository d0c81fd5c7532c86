"""Least attained service in two queues, as Tiresias discretises it."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import JobState, Plan, Snapshot
from sublet.domain.quantity import positive
from sublet.planning.draft import Draft
from sublet_lab.rivals.ranking import TIRESIAS_THRESHOLD_GPU_S, TOLERANCE_GPU_S, grant_in_order


@dataclass(frozen=True, slots=True)
class _Demoted:
    """1 for jobs that have had their share of the first queue, else 0; within a queue, by arrival."""

    threshold_gpu_s: float

    def __call__(self, state: JobState) -> float:
        return float(state.gpu_s > self.threshold_gpu_s - TOLERANCE_GPU_S)


@dataclass(frozen=True, slots=True)
class Las:
    """Least attained service in two queues: jobs that have had many GPU-hours give way to those that have not."""

    threshold_gpu_s: float = TIRESIAS_THRESHOLD_GPU_S

    def __post_init__(self) -> None:
        positive("threshold_gpu_s", self.threshold_gpu_s)

    def decide(self, snapshot: Snapshot) -> Plan:
        """First queue first, each in order of arrival; ask again when the next running job is due for demotion."""
        draft = Draft(snapshot)
        now_s, threshold = snapshot.now_s, self.threshold_gpu_s

        def had_its_share(state: JobState) -> bool:
            return state.attained_gpu_s(now_s) > threshold - TOLERANCE_GPU_S

        granted = grant_in_order(draft, _Demoted(threshold), had_its_share)
        due_s = [
            now_s + (threshold - state.attained_gpu_s(now_s)) / gpus
            for state, gpus in granted
            if not had_its_share(state)
        ]
        everyone_has_gpus = len(granted) == len(snapshot.active) + len(snapshot.waiting)
        return draft.plan(ask_again_s=min(due_s) if due_s and not everyone_has_gpus else None)
