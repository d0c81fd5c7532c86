"""Free first, then place: another policy's plan in two steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sublet.domain.plan import Plan, Policy, Snapshot


@dataclass(frozen=True, slots=True)
class VacateFirst:
    """The plan of `policy` in two: jobs that are to change give all GPUs back, and are placed anew with the others.

    In place of a resize there is a stop and a start, as in simulators that place all changed jobs in one go. It is for
    worlds in which a stop takes no time: a job that is still stopping is in no snapshot.
    """

    policy: Policy

    def decide(self, snapshot: Snapshot) -> Plan:
        """The plan itself once no job with GPUs is to change; before that, only the jobs that must leave."""
        plan = self.policy.decide(snapshot)
        active = snapshot.active
        leaving = [job_id for job_id in plan.shapes if job_id in active and active[job_id].gpus]
        return replace(plan, shapes=dict.fromkeys(leaving)) if leaving else plan
