"""What the policy decided last, why, and what it weighed: asked aside, told to the kernel, kept for whoever asks."""

from __future__ import annotations

import asyncio

from sublet.domain import events as news
from sublet.domain.plan import Plan
from sublet.domain.weighed import Weighing
from sublet.runtime.controller.gauges import Gauges
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.planner import Planner

__all__ = ["Decisions"]


class Decisions:
    """Of one controller's policy."""

    def __init__(self, inbox: Inbox, *, planner: Planner, gauges: Gauges) -> None:
        self._inbox, self._planner, self._gauges = inbox, planner, gauges
        self.plan: Plan | None = None  # the last one
        self.plan_s = 0.0
        self.reasons: dict[str, str] = {}  # by job
        self.weighed: dict[str, tuple[float, Weighing]] = {}  # by job: when its shapes were last weighed, and how

    async def make(self) -> None:
        """Another one, from all that is known by then."""
        await asyncio.sleep(0)  # let everything of this instant be heard first
        made = await self._planner.plan(lambda: self._inbox.kernel.snapshot(frozen=True))
        self._gauges.decision_s.add(made.seconds)
        self.plan, self.plan_s = made.plan, self._inbox.now_s()
        self.reasons |= made.plan.reasons
        jobs = self._inbox.kernel.jobs
        self.weighed = {job_id: each for job_id, each in self.weighed.items() if job_id in jobs}
        self.weighed |= {job_id: (self.plan_s, each) for job_id, each in made.plan.weighed.items()}
        self._inbox.tell(news.PlanMade(self._inbox.now_s(), made.plan, made.snapshot.seen))
