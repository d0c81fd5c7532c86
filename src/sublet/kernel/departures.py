"""Until when jobs train on nodes that the cloud has announced to take.

A job that states its lead time (`Job.lead_s`) stays until then, if all that it is to get by leaving is fewer GPUs. It
is told at once what it will become, so that it can prepare. Others leave at the notice. If nothing will be left that it
could run on, a plan may leave it its promise: it trains on until the nodes go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sublet.domain.job import Job
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Placement, Shape
from sublet.kernel.cluster import Cluster, NodePhase
from sublet.kernel.values_json import from_plain, to_plain

PLAN_S = 1.0  # in which survivors of a loss wait for the plan of that instant, before they help themselves
MARGIN_S = 2.0  # to end a step and to hear of the order; and clouds tell their time in whole seconds


class Departures:
    """When each noticed node is taken, and what those on it have been told to prepare."""

    def __init__(self, cluster: Cluster) -> None:
        self.prepared: dict[str, Shape] = {}  # by job
        self.broken_s: float | None = None  # since when survivors of a loss wait for the plan of that instant
        self._taken_s: dict[str, float] = {}  # by noticed node
        self._wake_s: float | None = None
        self._cluster = cluster

    def announce(self, node_id: str, taken_s: float) -> None:
        """The cloud will take it then; where it does not say when, no job stays."""
        if math.isfinite(taken_s):
            self._taken_s[node_id] = taken_s

    @property
    def wake_s(self) -> float | None:
        """The next wake-up, if there is one."""
        return self._wake_s

    def forget(self, node_id: str) -> None:
        """It is gone."""
        self._taken_s.pop(node_id, None)

    def due_s(self, job: Job, placement: Placement) -> float:
        """When it has to leave the first of these nodes: minus infinity = at once, infinity = all of them stay."""
        first_s = math.inf
        for node_id, _ in placement:
            if self._cluster.nodes[node_id].phase is not NodePhase.READY:
                if job.lead_s is None:
                    return -math.inf
                first_s = min(first_s, self._taken_s.get(node_id, -math.inf) - job.lead_s - MARGIN_S)
        return first_s

    def stays(
        self,
        state: JobState,
        held: Placement,
        healthy: Placement,
        now_s: float,
        *,
        finds: Placement | None,
        wanted: bool,
    ) -> bool:
        """It trains on where it is until it has to leave, though it `finds` what it was promised.

        Not where that is more than it uses now; nor where it has GPUs that others are promised, or where others have
        `wanted` what it finds for longer.
        """
        shape, ran, due_s = state.shape, state.runs_in, self.due_s(state.job, held)
        if state.phase is not Phase.RUNNING or shape is None or ran is None or not now_s < due_s < math.inf:
            return False
        missing = shape.gpus - sum(gpus for _, gpus in healthy)
        return missing >= 0 and (finds is None or (shape.used <= ran.used and not (wanted and missing)))

    def wake(self, jobs: Mapping[str, JobState], placement: Mapping[str, Placement], now_s: float) -> float | None:
        """The time at which the first job that stays or waits has to move; None = none, or it is known."""
        if not self._taken_s and self.broken_s is None:
            return None
        dues_s = [self.due_s(jobs[job_id].job, placement.get(job_id, ())) for job_id in self._on_noticed()]
        if self.broken_s is not None:
            dues_s.append(self.broken_s + PLAN_S)
        first_s = min((due_s for due_s in dues_s if now_s < due_s < math.inf), default=None)
        if first_s is None or first_s == self._wake_s:
            return None
        self._wake_s = first_s
        return first_s

    def due(self, jobs: Mapping[str, JobState], placement: Mapping[str, Placement], now_s: float) -> list[str]:
        """Time is up for these."""
        self._wake_s = None
        return [j for j in self._on_noticed() if self.due_s(jobs[j].job, placement.get(j, ())) <= now_s]

    def has_waited(self, now_s: float) -> bool:
        """Whether survivors of a loss have waited long enough; they wait no longer."""
        waited = self.broken_s is not None and self.broken_s + PLAN_S <= now_s
        if waited:
            self.broken_s = None
        return waited

    def falling(self, jobs: Mapping[str, JobState]) -> dict[str, int]:
        """GPUs that are about to be taken, by the job that trains on them until it has to leave."""
        found: dict[str, int] = {}
        for node_id in self._taken_s:
            for job_id, gpus in self._cluster.nodes[node_id].jobs.items():
                state = jobs[job_id]
                if state.phase is Phase.RUNNING and state.job.lead_s is not None:
                    found[job_id] = found.get(job_id, 0) + gpus
        return found

    def _on_noticed(self) -> dict[str, None]:
        return dict.fromkeys(job_id for node_id in self._taken_s for job_id in self._cluster.nodes[node_id].jobs)

    def tell(self, job_id: str, shape: Shape) -> bool:
        """It will go on in this shape; False = it knows."""
        told = self.prepared.get(job_id)
        self.prepared[job_id] = shape
        return shape != told and not (shape.grid is not None and shape.trains_like(told))

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "taken_s": dict(self._taken_s),
            "prepared": to_plain(self.prepared),
            "wake_s": self._wake_s,
            "broken_s": self.broken_s,
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._taken_s, self._wake_s, self.broken_s = dict(facts["taken_s"]), facts["wake_s"], facts["broken_s"]
        self.prepared = {job_id: from_plain(Shape, shape) for job_id, shape in facts["prepared"].items()}
