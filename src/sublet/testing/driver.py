"""A kernel driven by hand: every event is followed by a check of all laws, and orders are answered when told to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from sublet.domain.actions import (
    Action,
    MakePlan,
    PrepareJob,
    RefusePlan,
    ReleaseNode,
    RentNode,
    ResizeJob,
    SetTimer,
    StartJob,
    StopJob,
    TellUser,
)
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import (
    Event,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReady,
    NodeReleased,
    PlanMade,
    RentRefused,
    TimerFired,
)
from sublet.domain.job import Job
from sublet.domain.offer import Offer
from sublet.domain.plan import Plan, Policy
from sublet.domain.timers import Timer
from sublet.errors import InvalidValue, PlanRefused
from sublet.kernel.invariants import check
from sublet.kernel.journal import header_line, line_from
from sublet.kernel.kernel import Kernel

PATIENCE = 2_000  # orders answered in a row; far more than any settled world needs


class Driver:
    """Tells the kernel the events, and keeps the orders without an answer (`open`)."""

    def __init__(
        self,
        offers: Sequence[Offer],
        *,
        limits: Mapping[str, Limit] | None = None,
        quotas: Mapping[str, int] | None = None,
        budget: Budget = UNLIMITED,
    ) -> None:
        self.kernel = Kernel(offers, limits=limits, quotas=quotas, budget=budget)
        self.now_s = 0.0
        self.open: list[Action] = []
        self.last: list[Action] = []  # the orders after the last event
        self.timers: dict[Timer, float] = {}
        self.journal = [header_line(offers, limits or {}, budget, quotas)]

    def __repr__(self) -> str:
        """The life so far, so that a failing example can be read and replayed."""
        return "Driver of\n" + "\n".join(self.journal)

    def tell(self, event: Event) -> list[Action]:
        """One event; the orders that follow."""
        self.now_s = event.at_s
        self.last = actions = list(self.kernel.handle(event))
        check(self.kernel)
        self.journal.append(line_from(event, actions))
        if isinstance(event, NodeLost | NodeReleased | RentRefused):  # there is no answer any more for this node
            self.open = [o for o in self.open if getattr(o, "node_id", "") != event.node_id]
        for action in actions:
            if isinstance(action, RefusePlan):
                raise action.error(self.now_s)  # a fault of the policy; a test of it says `expect_refusal`
            if isinstance(action, SetTimer):
                self.timers[action.timer] = action.at_s
            elif isinstance(action, PrepareJob | TellUser) or (isinstance(action, StopJob) and not action.resumable):
                continue  # these are not answered
            else:
                self.open.append(action)
        return actions

    def submit(self, *jobs: Job) -> list[Action]:
        """Jobs arrive now; the orders that follow the last one."""
        actions: list[Action] = []
        for job in jobs:
            actions = self.tell(JobSubmitted(self.now_s, job))
        return actions

    def plan(self, plan: Plan) -> list[Action]:
        """The planner answers now, having seen everything."""
        self.open = [o for o in self.open if not isinstance(o, MakePlan)]
        return self.tell(PlanMade(self.now_s, plan, self.kernel.seen))

    def expect_refusal(self, plan: Plan) -> RefusePlan:
        """The planner answers now with a plan that is refused; all laws hold, and why."""
        with suppress(PlanRefused, InvalidValue):
            self.plan(plan)
        refusal, *others = self.last
        assert isinstance(refusal, RefusePlan)
        self.timers |= {action.timer: action.at_s for action in others if isinstance(action, SetTimer)}
        return refusal

    def answer(self, order: Action, policy: Policy | None = None) -> list[Action]:
        """The world has carried this order out, now."""
        self.open.remove(order)
        now_s = self.now_s
        match order:
            case RentNode():
                return self.tell(NodeReady(now_s, order.node_id))
            case ReleaseNode():
                return self.tell(NodeReleased(now_s, order.node_id))
            case StartJob():
                return self.tell(JobStarted(now_s, order.job_id, order.generation, self.done(order.job_id), now_s))
            case ResizeJob():
                return self.tell(JobResized(now_s, order.job_id, order.generation, self.done(order.job_id), now_s))
            case StopJob():
                return self.tell(JobStopped(now_s, order.job_id, order.generation, self.done(order.job_id)))
            case MakePlan():
                assert policy is not None
                self.now_s = self.kernel.now_s  # a plan is of the instant of its snapshot
                return self.plan(policy.decide(self.kernel.snapshot()))
            case PrepareJob() | RefusePlan() | SetTimer() | TellUser():
                raise AssertionError(f"no answer to {order}")

    def settle(self, policy: Policy) -> int:
        """Answer everything, the planner last, until nothing is open; how many plans that took."""
        plans = 0
        for _ in range(PATIENCE):
            if not self.open:
                return plans
            others = [o for o in self.open if not isinstance(o, MakePlan)]
            plans += not others
            self.answer(others[0] if others else self.open[0], policy)
        raise AssertionError(f"still not at rest: {self.open}")

    def ring(self, timers: Iterable[Timer]) -> None:
        """These timers fire at the latest of their times."""
        for timer in timers:
            at_s = max(self.now_s, self.timers.pop(timer))
            self.tell(TimerFired(at_s, timer))

    def done(self, job_id: str) -> float:
        """Work behind a job, as the kernel reckons; nothing for one that has ended."""
        state = self.kernel.jobs.get(job_id)
        return 0.0 if state is None else state.done_at(self.now_s)
