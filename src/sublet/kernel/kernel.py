"""Event in, actions out.

The kernel keeps what is promised (a shape per job, nodes per offer) apart from what is (GPUs held, nodes ready), and
after every event orders whatever brings the second closer to the first. It never waits and never asks: whatever takes
time is an order now and an event later, and `generation` tells a late answer from a fresh one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, assert_never

from sublet.domain import events as news
from sublet.domain.actions import Action, MakePlan, RefusePlan, SetTimer, StopJob, TellUser
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.demand import Demand
from sublet.domain.events import Event
from sublet.domain.job import Job
from sublet.domain.money import Money
from sublet.domain.offer import Offer
from sublet.domain.plan import JobState, Phase, Plan, Snapshot
from sublet.domain.timers import CheckPurse, FallDue, GrowAgain, MoveDue, PeriodOver, PlanAgain, RetryOffer
from sublet.errors import SubletError, UnexpectedEvent
from sublet.kernel.cluster import NodePhase
from sublet.kernel.leaving import leave
from sublet.kernel.ordering import subject_of
from sublet.kernel.refusals import Promise, refuse_plan, shapes_to_promise
from sublet.kernel.requests import PlanRequests, frees_money
from sublet.kernel.spending import Spending
from sublet.kernel.supply import Supply, foresee, let_go
from sublet.kernel.tenancy import Tenancy

KERNEL_VERSION = 11  # counted up with every change of what follows from an event; 0 = before versions were recorded


class Kernel:
    """The state of everything rented (`supply`) and everything run (`tenancy`), advanced by `handle`."""

    supply_kind: type[Supply] = Supply
    tenancy_kind: type[Tenancy] = Tenancy

    def __init__(
        self,
        offers: Sequence[Offer],
        *,
        limits: Mapping[str, Limit] | None = None,  # by offer id
        quotas: Mapping[str, int] | None = None,  # GPUs, by pool
        budget: Budget = UNLIMITED,
        expected: Demand | None = None,
    ) -> None:
        self.now_s, self.began_s, self.seen = 0.0, 0.0, 0  # seen: events handled
        self.supply = self.supply_kind(offers, limits or {}, quotas or {}, budget)
        self.cluster, self.ledger, self.pools = self.supply.cluster, self.supply.ledger, self.supply.pools
        self.tenancy = self.tenancy_kind(self.supply)
        self.jobs, self.active, self.waiting = self.tenancy.jobs, self.tenancy.active, self.tenancy.waiting
        self.budgets, self.spending = self.tenancy.budgets, Spending(self.supply, self.tenancy)
        self._plans, self._expected = PlanRequests(), expected
        self._warned: set[str] = set()  # jobs whose owners were told
        self._actions: list[Action] = []

    # ------------------------------------------------------------------ the public verbs

    def handle(self, event: Event, recorded: Sequence[Action] = ()) -> list[Action]:
        """Take one event in; give the orders that follow. An impossible event is an error, without a trace.

        `recorded` are the orders that followed when it was lived first: they stand where they depend on how fast a job
        goes, and its speed is not in the record.
        """
        if not self.now_s <= event.at_s < math.inf:  # also refuses NaN
            why = f"time went back from {self.now_s} s" if event.at_s < self.now_s else "it has no time"
            raise UnexpectedEvent(event, why, self.story(subject_of(event)))
        before_s, self.now_s = self.now_s, event.at_s
        rolled = self.spending.pass_time(event)
        self.tenancy.now_s = event.at_s
        self.seen += 1
        self._actions = self.tenancy.orders = []
        self.tenancy.recorded = recorded
        self.tenancy.plan_due = bool(self._plans.since)
        try:
            self._hear(event)
        except SubletError:  # each part looks before it changes anything
            self.now_s = self.tenancy.now_s = before_s
            self.seen -= 1
            if rolled is not None:
                self.budgets.roll_back(rolled)
            raise
        if rolled is not None:
            self._call_for_plan()
        if self.seen == 1:  # the budget begins to count
            self.began_s = event.at_s
            self.ledger.follow(self.supply.budget, event.at_s)
        self._follow_up()
        return self._actions

    def _hear(self, event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 - a case for each kind of event
        """The most frequent first."""
        match event:
            case news.PlanMade():
                self._take_plan(event)
            case news.JobStarted() | news.JobResized():
                self.tenancy.finish_move(event)
                self.tenancy.run_queues()
            case news.JobSubmitted():
                if event.job.id in self.jobs:
                    raise UnexpectedEvent(event, "a job of this name is here already", self.story(event.job.id))
                self.tenancy.admit(event.job, event)
                self._call_for_plan()
            case news.JobFinished() | news.JobFailed():
                self._end(self._state(event), done=isinstance(event, news.JobFinished))
            case news.JobStopped():
                if self.tenancy.finish_stop(event):
                    self._call_for_plan()
                self.tenancy.run_queues()
            case news.ProgressReported():
                self.tenancy.note_progress(event.job_id, event.done)
            case news.NodeReady() | news.NodeNoticed() | news.NodeSlow() | news.NodeLost():
                self._hear_of_node(event)
            case news.NodeThreatened() | news.NodeSilent() | news.NodeReleased() | news.RentRefused():
                self._hear_of_node(event)
            case news.NodesFound():
                self.supply.numbered = max(self.supply.numbered, event.highest)
            case news.PriceChanged():
                self.supply.reprice(self._offer_id(event), event)
                self._call_for_plan()
            case news.PriceDoubted():
                self.supply.offering.doubt(self._offer_id(event), event.price, event.at_s)
            case news.AvailabilityChanged():
                self.supply.restock(self._offer_id(event), event.nodes, event.at_s)
                self._call_for_plan()
            case news.TimerFired():
                self._ring(event)
            case news.JobChanged():
                if event.job.id not in self.jobs:
                    raise UnexpectedEvent(event, "no such job, or it has ended")
                self.tenancy.change(event.job, event)
                self.tenancy.run_queues()
                self._call_for_plan()
            case news.JobCancelled():
                state = self._state(event)
                if state.phase is not Phase.WAITING:
                    self._actions.append(StopJob(event.job_id, state.generation + 1, resumable=False))
                self._end(state)
            case news.BudgetChanged():
                self.supply.refill(self.budgets.in_force(event.budget))
                self.ledger.follow(event.budget, event.at_s)
                self._call_for_plan()
            case news.PurseSet():
                self.tenancy.begin_to_count()
                self.budgets.set(event)
                self._call_for_plan()
            case news.OffersChanged():
                self.supply.reoffer(event.offers, event.limits, event.quotas, event.at_s)
                self.tenancy.keep_to(self.pools)
                self._call_for_plan()
            case _:
                assert_never(event)

    def _follow_up(self) -> None:
        """The follow-up of any event: other nodes, the end of the budget, offers that are over, another plan."""
        supply, plans, growing = self.supply, self._plans, self.tenancy.growing
        if supply.changed:
            self.spending.adjust_supply(self.now_s)
            if supply.short and any(self.tenancy.lines.values()):
                self._call_for_plan()  # promises were made with money that is gone: ask again
        if supply.purse.budget.purse is not None or self.budgets.shares.counts:
            self._watch_total()
        if supply.offering.withdrawn and supply.retire():
            self.tenancy.keep_to(self.pools)
            self._call_for_plan()
        wakes = ((FallDue(), supply.offering.wake_for_fall()), (MoveDue(), self.tenancy.next_move_s()))
        self._actions += [SetTimer(timer, at_s) for timer, at_s in wakes if at_s is not None]
        ask = plans.since and not plans.is_open
        if (ask or growing.put_aside) and (grow_s := growing.wake(self.active, self.now_s)) is not None:
            self._actions.append(SetTimer(GrowAgain(), grow_s))
        if ask:
            plans.is_open = True
            self._actions.append(MakePlan())

    def snapshot(self, *, frozen: bool = False) -> Snapshot:
        """The state that a policy sees; `frozen` copies it, for a planner that runs aside."""
        view = dict if frozen else MappingProxyType
        active = self.tenancy.growing.shown(self.active, self.tenancy.placement, self.now_s)
        waiting = self.waiting
        if self.budgets.allowed:
            shown = partial(self.budgets.shown, now_s=self.now_s)
            active = {job_id: shown(state) or state for job_id, state in active.items()}
            waiting = waiting.only(shown)
        return Snapshot(
            now_s=self.now_s,
            seen=self.seen,
            waiting=waiting.frozen() if frozen else waiting,
            active=view(active),
            offers=self.tenancy.growing.offers_shown(self.active, others=bool(len(self.waiting)), now_s=self.now_s),
            pools=view(self.pools),
            promised=view(self.tenancy.promises.promised),
            steady=view(self.tenancy.promises.steady),
            budget=self.supply.budget,
            spent=self.ledger.spent(self.now_s),
            most_nodes=self.supply.purse.most_held,
            reserved=Money() if self.supply.budget.purse is None else self.supply.purse.reserved(self.now_s),
            woken=self._plans.woken,
            began_s=self.began_s,
            allowed=None if self.supply.budget.average is None else self.ledger.allowed(self.now_s),
            falling=view(self.tenancy.departures.falling(self.jobs)),
            expected=self._expected,
            arrived=self.tenancy.census.demand,
            ended=self.tenancy.census.ended,
        )

    def story(self, job_id: str) -> list[str]:
        """Events of a job so far, oldest first."""
        return self.tenancy.story(job_id)

    @property
    def planning(self) -> bool:
        """A MakePlan is open."""
        return self._plans.is_open

    @property
    def planning_later(self) -> bool:
        """A plan was refused: a timer is set for the next MakePlan, if nothing calls for it before."""
        return self._plans.put_off

    # ------------------------------------------------------------------ jobs, nodes and timers

    def _call_for_plan(self) -> None:
        self._plans.since = self.seen

    def _state(self, event: news.JobCancelled | news.JobFinished | news.JobFailed) -> JobState:
        state = self.jobs.get(event.job_id)
        if state is None:
            raise UnexpectedEvent(event, "no such job, or it has ended")
        return state

    def _end(self, state: JobState, *, done: bool = False) -> None:
        self._warned.discard(state.job.id)
        self.tenancy.end(state, done=done)
        self.tenancy.run_queues()
        self._call_for_plan()

    def _hear_of_node(self, event: news.NodeNews) -> None:
        node = self.cluster.nodes.get(event.node_id)
        if node is None:
            raise UnexpectedEvent(event, "no such node, or it is gone")
        match event:
            case news.NodeReady():
                if node.phase is NodePhase.REQUESTED:  # else it was given back while it booted
                    self.supply.mark_ready(node)
                    for job_id in self.tenancy.growing.come(node, event.at_s):
                        self.tenancy.enqueue(self.jobs[job_id])
                    self.tenancy.run_queues()
                return
            case news.NodeNoticed():
                if node.phase is NodePhase.RELEASING:
                    return
                self.supply.offering.memory.announce(node.offer.id, node.id, event.lost_s)
                let_go(self.supply, node, self.tenancy.promises, event.at_s)
                self.tenancy.growing.go(node, event.at_s, told=True)
                self.supply.mark_noticed(node)
                self.tenancy.line_up_tenants(node, event.lost_s)
            case news.NodeSlow() | news.NodeSilent() | news.NodeThreatened():
                if node.phase is not NodePhase.READY:
                    return  # it goes already
                leave(self.supply, self.tenancy, node, event)
            case news.NodeLost():
                self.budgets.end_by(node.id, event.billed_to_s)
                if node.phase not in (NodePhase.NOTICED, NodePhase.RELEASING):  # else it was counted, or on its way out
                    let_go(self.supply, node, self.tenancy.promises, event.at_s)
                    self.tenancy.growing.go(node, event.at_s, told=False)
                self.tenancy.forget(node)
                self.cluster.withdraw(node, NodePhase.RELEASING)  # no job is to be moved there
                self.tenancy.lose_node(node, event)
                self.supply.remove_lost(node, event)
            case news.NodeReleased():
                if node.phase is not NodePhase.RELEASING:
                    raise UnexpectedEvent(event, "the node was not being given back")
                self.tenancy.forget(node)
                wanted = frees_money(self.supply.purse.budget, self.active.values(), waiting=len(self.waiting))
                if not self.supply.remove_released(node, event) and not wanted:
                    return
            case news.RentRefused():
                if node.phase not in (NodePhase.REQUESTED, NodePhase.RELEASING):
                    raise UnexpectedEvent(event, "the node is ours already")
                self.tenancy.forget(node)
                self._actions.append(self.supply.remove_refused(node, event))
            case _:
                assert_never(event)
        self._call_for_plan()

    def _offer_id(self, event: news.PriceChanged | news.PriceDoubted | news.AvailabilityChanged) -> str:
        if event.offer_id not in self.supply.offers:
            raise UnexpectedEvent(event, "no such offer")
        return event.offer_id

    def _ring(self, event: news.TimerFired) -> None:
        match event.timer:
            case CheckPurse() | PeriodOver():
                return  # to be looked at is all it was for
            case RetryOffer(offer_id):
                self.supply.retry(offer_id)
            case GrowAgain():
                for job_id in self.tenancy.growing.retry():
                    self.tenancy.enqueue(self.jobs[job_id])
                self.tenancy.run_queues()
            case FallDue():
                if not self.supply.offering.memory.pass_by(event.at_s):
                    return  # the market has spoken
                self.supply.changed = True
            case MoveDue():
                self.tenancy.move_due()
                return
            case PlanAgain():
                if not self._plans.wake(event.at_s):
                    return
            case _:
                assert_never(event.timer)
        self._call_for_plan()

    # ------------------------------------------------------------------ money and plans

    def _watch_total(self) -> None:
        if self.spending.watch(self.now_s):
            self._call_for_plan()

    def _take_plan(self, event: news.PlanMade) -> None:
        stale = event.seen < self._plans.since  # it did not see everything: the next plan is on its way
        promises = self._wanted(event.plan, stale=stale)
        refusal = self._plans.count(event.at_s) or self._refusal(event.plan, promises, stale=stale)
        if refusal is not None:
            self._actions += self._plans.refuse(refusal, event.at_s, stale=stale)
            return
        self._plans.take(stale=stale)
        self.tenancy.plan_due = stale
        self.cluster.packing = event.plan.packing
        foresee(self.supply, event.plan.hold)
        self._promise(promises)
        self.supply.wish(event.plan.hold)
        self.tenancy.run_queues()
        self._warn(event.plan)
        if event.plan.ask_again_s is not None:
            self._actions += self._plans.ask_again(event.plan.ask_again_s, event.at_s)

    def _warn(self, plan: Plan) -> None:
        for job_id in plan.warnings:
            if job_id not in self._warned and job_id in self.jobs:
                self._warned.add(job_id)
                self._actions.append(TellUser(f"{job_id}: {plan.warnings[job_id]}", job_id))

    def _promise(self, promises: Sequence[Promise]) -> None:
        tenancy = self.tenancy
        gaining = []
        for before, shape in promises:
            state = tenancy.promise(before, shape)
            if (shape is None or shape.gpus < state.gpus) and tenancy.settle(state):
                continue  # those that give come before those that get
            gaining.append(state)
        for state in gaining:
            tenancy.enqueue(state)

    def _wanted(self, plan: Plan, *, stale: bool) -> list[Promise]:
        found = shapes_to_promise(plan, self.jobs, self.supply, stale=stale)
        return [(state, shape) for state, shape in found if shape is None or state.gpus or self.budgets.pays(state.job)]

    def _refusal(self, plan: Plan, promises: Sequence[Promise], *, stale: bool) -> RefusePlan | None:
        tenancy = self.tenancy
        falling = tenancy.departures.falling(self.jobs)
        return refuse_plan(
            plan, promises, tenancy.promises, jobs=self.jobs, supply=self.supply, stale=stale, falling=falling
        )

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """All that it knows, as JSON, but for how fast jobs go; snapshots.py makes a kernel of it again."""
        return {
            "kernel": KERNEL_VERSION,
            "now_s": self.now_s,
            "began_s": self.began_s,
            "seen": self.seen,
            **self._plans.facts(),
            **self.spending.facts(),
            "warned": sorted(self._warned),
            "supply": self.supply.facts(),
            "tenancy": self.tenancy.facts(),
        }

    def restore(self, facts: Mapping[str, Any], job_from: Callable[[Mapping[str, Any]], Job]) -> None:
        """Go on from there; made with the offers, limits, quotas and budget of these facts."""
        self.now_s, self.began_s, self.seen = facts["now_s"], facts["began_s"], facts["seen"]
        self._plans.restore(facts)
        self.spending.restore(facts)
        self._warned = set(facts["warned"])
        self.supply.restore(facts["supply"])
        self.tenancy.restore(facts["tenancy"], self.now_s, job_from)
