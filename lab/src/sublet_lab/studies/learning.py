"""Any policy, without its speeds: of each job it sees what the job has learned of itself, as jobs of Sia do.

A job's expectation is wrong where it has not run yet (`perf.sia_learned`), and the policy plans with that. Sizes are as
they were: what a policy is told of them is another question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sublet.domain.plan import JobState, Plan, Policy, Snapshot, WaitingJobs
from sublet_lab.rivals.fitness import widest_guess
from sublet_lab.sia_learned import Learned


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnsSpeeds:
    """For one run, as the notebook is."""

    policy: Policy
    notebook: Learned
    growth: float = math.inf  # how many times the GPUs that a job has tried it may have, as in `policies.sia`

    def decide(self, snapshot: Snapshot) -> Plan:
        """The policy's decision on jobs as they see themselves."""

        def seen(state: JobState) -> JobState:
            return self._as_it_sees_itself(state, snapshot.now_s)

        active = {job_id: seen(state) for job_id, state in snapshot.active.items()}
        return self.policy.decide(replace(snapshot, active=active, waiting=_Seen(snapshot.waiting, seen)))

    def _as_it_sees_itself(self, state: JobState, now_s: float) -> JobState:
        """Its progress is reported, not computed from an unknown speed."""
        most = int(min(state.job.max_gpus, widest_guess(state, now_s, self.growth)))
        speed, gpus = self.notebook.speed(state, now_s), min(state.job.gpus, most)
        job = replace(state.job, speed=speed, gpus=gpus, max_gpus=most)
        return replace(state, job=job, done=state.done_at(now_s), as_of_s=max(now_s, state.as_of_s))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Jobs that wait, each as it sees itself."""

    waiting: WaitingJobs
    seen: Callable[[JobState], JobState]

    def __len__(self) -> int:
        return len(self.waiting)

    def by(self, key: Callable[[JobState], float]) -> Iterator[JobState]:
        """Ranked by what is seen: a key must not read more than the policy."""
        return iter(sorted(map(self.seen, self.waiting.by(_arrival)), key=key))

    def orders(self, *keys: Callable[[JobState], float]) -> tuple[Sequence[JobState], ...]:
        """In each of these orders."""
        return tuple(list(self.by(key)) for key in keys)


def _arrival(state: JobState) -> float:
    return float(state.seq)
