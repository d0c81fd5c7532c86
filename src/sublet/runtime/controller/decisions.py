"""What the policy decided last, why, and what it weighed: asked aside, told to the kernel, kept for whoever asks.

Only a plan that the kernel has taken is a decision. Of one that it refused nothing is kept but why.
"""

from __future__ import annotations

import asyncio

from sublet.domain import events as news
from sublet.domain.actions import RefusePlan
from sublet.domain.plan import Plan
from sublet.domain.weighed import Weighing
from sublet.machine.wall import WALL, Wall
from sublet.runtime.controller.alarms import AlarmKind, Alarms
from sublet.runtime.controller.gauges import Gauges
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.planner import Planner

__all__ = ["Decisions"]


class Decisions:
    """Of one controller's policy."""

    def __init__(self, inbox: Inbox, *, planner: Planner, gauges: Gauges, alarms: Alarms, wall: Wall = WALL) -> None:
        self._inbox, self._planner, self._gauges, self._alarms = inbox, planner, gauges, alarms
        self._wall = wall
        self._making = False  # one at a time: of two, the older might come last and undo the newer
        self.plan: Plan | None = None  # the last one that was taken
        self.plan_s = 0.0
        self.reasons: dict[str, str] = {}  # by job
        self.weighed: dict[str, tuple[float, Weighing]] = {}  # by job: when its shapes were last weighed, and how
        self.refused = ""  # why the last plan was; "" = it was taken
        self._refused_what, self._refused_wall_s = "", 0.0  # the limit, without whose it is; since when none was taken

    @property
    def overdue(self) -> str:
        """Why no plan is taken though there should be one, in words for everybody; "" where all is well."""
        if self.refused and not self._planner.overdue:
            waited_s = self._wall.monotonic() - self._refused_wall_s
            return f"plans are refused since {waited_s:.0f} s, by {self._refused_what}; the one before them stands"
        return self._planner.overdue

    async def make(self) -> None:
        """Another one, from all that is known by then; a second order for one that is being made asks for the same."""
        if self._making:
            return
        self._making = True
        try:
            await asyncio.sleep(0)  # let everything of this instant be heard first
            made = await self._planner.plan(lambda: self._inbox.kernel.snapshot(frozen=True))
        finally:
            self._making = False
        self._gauges.decision_s.add(made.seconds)
        self._inbox.tell(news.PlanMade(self._inbox.now_s(), made.plan, made.snapshot.seen))

    def hear(self, event: news.PlanMade, refusal: RefusePlan | None) -> None:
        """The kernel has taken a plan, or refused it."""
        if refusal is not None:
            if not self.refused:
                self._refused_wall_s = self._wall.monotonic()
            self.refused, self._refused_what = str(refusal.error(event.at_s)), _without_names(refusal.binding)
            text = f"the policy's plan is refused, nothing of it is done: {self.refused}"
            self._alarms.sound(AlarmKind.REFUSED, text, reason=self._refused_what)
            return
        self.refused, self.plan, self.plan_s = "", event.plan, event.at_s
        self.reasons |= event.plan.reasons
        jobs = self._inbox.kernel.jobs
        self.weighed = {job_id: each for job_id, each in self.weighed.items() if job_id in jobs}
        self.weighed |= {job_id: (self.plan_s, each) for job_id, each in event.plan.weighed.items()}


def _without_names(binding: str) -> str:
    """`shapes.gpus` of `shapes[j-1].gpus`: probes are answered without a token, and say nothing of anybody's jobs."""
    return binding.partition("[")[0] + binding.rpartition("]")[2] if "[" in binding else binding
