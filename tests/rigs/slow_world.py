"""A world that answers late, in any order, or not at all, as a script of verbs says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sublet.domain.actions import MakePlan, RentNode, ResizeJob, StartJob, StopJob
from sublet.domain.budget import Budget
from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    JobCancelled,
    JobChanged,
    JobFailed,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    NodeLost,
    NodeNoticed,
    PlanMade,
    PriceChanged,
    ProgressReported,
    RentRefused,
)
from sublet.domain.money import Price
from sublet.domain.timers import timer_to_text
from sublet.testing.driver import Driver

VERBS = (
    "rest",  # nothing; first, so that a failing script shrinks to what matters
    *("submit",) * 3,
    *("answer",) * 8,
    *("plan",) * 4,
    "look",
    "refuse",
    "lose",
    "notice",
    "finish",
    "fail",
    "cancel",
    "report",
    "pause",
    "unpause",
    "learn",
    "supply",
    "price",
    "budget",
    "ring",
    "echo",
)


@dataclass
class SlowWorld:
    """Interprets a script; what makes no sense at the moment is skipped."""

    driver: Driver
    policy: object
    waiting: list
    looked: object = None  # a frozen snapshot that the planner is still thinking about
    past_answers: list = field(default_factory=list)

    def step(self, verb, which, wait_s):
        self.driver.now_s += wait_s
        getattr(self, verb)(which)

    def _pick(self, options, which):
        return options[which % len(options)] if options else None

    def submit(self, _which):
        if self.waiting:
            self.driver.submit(self.waiting.pop(0))

    def answer(self, which):
        orders = [order for order in self.driver.open if not isinstance(order, MakePlan)]
        order = self._pick(orders, which)
        if order is None:
            return
        if isinstance(order, StartJob | ResizeJob | StopJob):
            self.past_answers.append(order)
        self.driver.answer(order)

    def look(self, _which):
        """The planner takes its snapshot now and will answer later."""
        if MakePlan() in self.driver.open and self.looked is None:
            self.looked = self.driver.kernel.snapshot(frozen=True)

    def plan(self, _which):
        if MakePlan() not in self.driver.open:
            return
        snapshot = self.looked or self.driver.kernel.snapshot()
        self.looked = None
        self.driver.open.remove(MakePlan())
        self.driver.tell(PlanMade(self.driver.now_s, self.policy.decide(snapshot), snapshot.seen))

    def refuse(self, which):
        order = self._pick([order for order in self.driver.open if isinstance(order, RentNode)], which)
        if order is not None:
            self.driver.tell(RentRefused(self.driver.now_s, order.node_id))

    def lose(self, which):
        node_id = self._pick(sorted(self.driver.kernel.cluster.nodes), which)
        if node_id is not None:
            self.driver.tell(NodeLost(self.driver.now_s, node_id))

    def notice(self, which):
        node_id = self._pick(sorted(self.driver.kernel.cluster.nodes), which)
        if node_id is not None:
            self.driver.tell(NodeNoticed(self.driver.now_s, node_id, self.driver.now_s + 120.0))

    def _ends(self, which, event):
        job_id = self._pick([j for j, state in self.driver.kernel.jobs.items() if state.gpus], which)
        if job_id is not None:
            self.driver.tell(event(job_id))

    def finish(self, which):
        self._ends(which, lambda job_id: JobFinished(self.driver.now_s, job_id))

    def fail(self, which):
        self._ends(which, lambda job_id: JobFailed(self.driver.now_s, job_id, "of its own"))

    def cancel(self, which):
        job_id = self._pick(list(self.driver.kernel.jobs), which)
        if job_id is not None:
            self.driver.tell(JobCancelled(self.driver.now_s, job_id))

    def pause(self, which):
        self._change(which, lambda job: replace(job, paused=True))

    def unpause(self, which):
        self._change(which, lambda job: replace(job, paused=False))

    def learn(self, which):
        self._change(which, lambda job: replace(job, restart_s=float(which), weight=1.0 + which))

    def _change(self, which, other):
        job_id = self._pick(list(self.driver.kernel.jobs), which)
        if job_id is not None:
            self.driver.tell(JobChanged(self.driver.now_s, other(self.driver.kernel.jobs[job_id].job)))

    def report(self, which):
        job_id = self._pick(list(self.driver.kernel.jobs), which)
        if job_id is not None:
            done = self.driver.kernel.jobs[job_id].job.work * which / 8
            self.driver.tell(ProgressReported(self.driver.now_s, job_id, done))

    def supply(self, which):
        offer = self._pick(list(self.driver.kernel.supply.offers), which)
        self.driver.tell(AvailabilityChanged(self.driver.now_s, offer, (None, 0, 1, 3)[which % 4]))

    def price(self, which):
        offer = self._pick(list(self.driver.kernel.supply.offers), which)
        self.driver.tell(PriceChanged(self.driver.now_s, offer, Price(500_000 * (1 + which))))

    def budget(self, which):
        burn = None if which == 0 else Price(2_000_000 * which)
        self.driver.tell(BudgetChanged(self.driver.now_s, Budget(burn=burn)))

    def ring(self, which):
        name = self._pick(sorted(self.driver.timers, key=timer_to_text), which)
        if name is not None:
            self.driver.ring([name])

    def echo(self, which):
        """An answer comes a second time, long after."""
        order = self._pick(self.past_answers, which)
        state = self.driver.kernel.jobs.get(order.job_id) if order else None
        if state is None or order.generation == state.generation:
            return
        now_s, facts = self.driver.now_s, (order.job_id, order.generation, 0.0)
        if isinstance(order, StartJob):
            self.driver.tell(JobStarted(now_s, *facts, now_s))
        elif isinstance(order, ResizeJob):
            self.driver.tell(JobResized(now_s, *facts, now_s))
        else:
            self.driver.tell(JobStopped(now_s, *facts))
