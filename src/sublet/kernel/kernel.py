"""Event in, actions out.

The kernel keeps what is promised (a shape per job, nodes per offer) apart from what is (GPUs held, nodes ready), and
after every event orders whatever brings the second closer to the first. It never waits and never asks: whatever takes
time is an order now and an event later, and `generation` tells a late answer from a fresh one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from sublet.domain.timers import CheckPurse, PlanAgain, RetryOffer
from sublet.errors import SubletError, UnexpectedEvent
from sublet.kernel.cluster import Node, NodePhase
from sublet.kernel.plan_check import refuse_over_limits, refuse_wrong_names, shapes_to_promise
from sublet.kernel.supply import Supply
from sublet.kernel.tenancy import Tenancy

__all__ = ["KERNEL_VERSION", "Kernel"]

KERNEL_VERSION = 3  # counted up with every change of what follows from an event; 0 = before versions were recorded
MOST_PLANS_AT_ONCE = 1_000
REFUSED_AGAIN_S = 10.0  # until a policy whose plan was refused is asked again, if nothing happens before
REFUSED_AT_MOST_S = 960.0  # twice as long after each further one in a row, up to this: as for an offer
SHORTEST_TIMER_S = 0.001  # a policy that asks to be asked again at once must not stop the clock


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
        self.now_s = self.began_s = 0.0
        self.seen = 0  # events handled
        self.planning = False  # a MakePlan is open
        self.supply = self.supply_kind(offers, limits or {}, quotas or {}, budget)
        self.cluster, self.ledger, self.pools = self.supply.cluster, self.supply.ledger, self.supply.pools
        self.tenancy = self.tenancy_kind(self.supply)
        self.jobs, self.active, self.waiting = self.tenancy.jobs, self.tenancy.active, self.tenancy.waiting
        self._changed = 0  # value of `seen` at the last event that calls for a plan; 0 = none does
        self._wake_s: float | None = None
        self._woken = False  # the time that a plan asked for has come, and no plan was made since
        self._planned_s, self._plans_now = -1.0, 0  # when the last plan was made, and how many at that instant
        self._refused = 0  # plans in a row
        self._spent_s: float | None = None  # when the purse will be spent at today's burn
        self._expected = expected
        self._warned: set[str] = set()  # jobs whose owners were told
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            news.JobSubmitted: self._job_submitted,
            news.JobCancelled: self._job_cancelled,
            news.JobChanged: self._job_changed,
            news.JobStarted: self._job_moved,
            news.JobResized: self._job_moved,
            news.JobStopped: self._job_stopped,
            news.ProgressReported: self._progress_reported,
            news.JobFinished: self._job_ended,
            news.JobFailed: self._job_ended,
            news.NodeReady: self._node_ready,
            news.NodeNoticed: self._node_noticed,
            news.NodeLost: self._node_lost,
            news.NodeReleased: self._node_released,
            news.RentRefused: self._rent_refused,
            news.PriceChanged: self._price_changed,
            news.AvailabilityChanged: self._availability_changed,
            news.OffersChanged: self._offers_changed,
            news.BudgetChanged: self._budget_changed,
            news.TimerFired: self._timer_fired,
            news.PlanMade: self._plan_made,
        }

    # ------------------------------------------------------------------ the public verbs

    def handle(self, event: Event) -> list[Action]:
        """Take one event in; give the orders that follow from it."""
        if not self.now_s <= event.at_s < math.inf:  # also refuses NaN
            why = f"time went back from {self.now_s} s" if event.at_s < self.now_s else "it has no time"
            raise UnexpectedEvent(event, why, self.story(_subject(event)))
        before_s, self.now_s = self.now_s, event.at_s
        self.tenancy.now_s = event.at_s
        self.seen += 1
        self._actions = self.tenancy.orders = []
        self.tenancy.plan_due = bool(self._changed)
        try:
            self._handlers[type(event)](event)
        except SubletError:  # it cannot have happened: handlers look before they change anything
            self.now_s = self.tenancy.now_s = before_s
            self.seen -= 1
            raise
        if self.seen == 1:  # the budget begins to count
            self.began_s = event.at_s
            self.ledger.aim(self.supply.budget.average, event.at_s)
        if self.supply.changed:
            self._adjust_supply()
            if self.supply.short and self.tenancy.lines_stand:
                self._changed = self.seen  # promises were made with money that is gone: ask again
        if self.supply.budget.purse is not None:
            self._watch_purse()
        if self.supply.offering.withdrawn and self.supply.retire():
            self._leave_gone_pools()
        if self._changed and not self.planning:
            self.planning = True
            self._actions.append(MakePlan())
        return self._actions

    def snapshot(self, *, frozen: bool = False) -> Snapshot:
        """What a policy may know now; `frozen` copies it, for a planner that runs aside."""
        view = dict if frozen else MappingProxyType
        return Snapshot(
            now_s=self.now_s,
            seen=self.seen,
            waiting=self.waiting.frozen() if frozen else self.waiting,
            active=view(self.active),
            offers={offer_id: self.supply.offering.state(offer_id, self.now_s) for offer_id in self.supply.offers},
            pools=view(self.pools),
            promised=view(self.tenancy.promised),
            budget=self.supply.budget,
            spent=self.ledger.spent(self.now_s),
            most_nodes=self.supply.purse.most_held,
            reserved=Money() if self.supply.budget.purse is None else self.supply.purse.reserved(self.now_s),
            woken=self._woken,
            began_s=self.began_s,
            allowed=None if self.supply.budget.average is None else self.ledger.allowed(self.now_s),
            expected=self._expected,
            arrived=self.tenancy.census.demand,
        )

    def story(self, job_id: str) -> list[str]:
        """What happened to a job so far, oldest first."""
        return self.tenancy.story(job_id)

    # ------------------------------------------------------------------ jobs

    def _job_submitted(self, event: news.JobSubmitted) -> None:
        if event.job.id in self.jobs:
            raise UnexpectedEvent(event, "a job of this name is here already", self.story(event.job.id))
        self.tenancy.admit(event.job, event)
        self._changed = self.seen

    def _job_cancelled(self, event: news.JobCancelled) -> None:
        state = self._known(event)
        if state.phase is not Phase.WAITING:
            self._actions.append(StopJob(event.job_id, state.generation + 1, resumable=False))
        self._end(state)

    def _job_changed(self, event: news.JobChanged) -> None:
        if event.job.id not in self.jobs:
            raise UnexpectedEvent(event, "no such job, or it has ended")
        self.tenancy.change(event.job, event)
        self.tenancy.serve_lines()
        self._changed = self.seen

    def _job_ended(self, event: news.JobFinished | news.JobFailed) -> None:
        self._end(self._known(event))

    def _end(self, state: JobState) -> None:
        self._warned.discard(state.job.id)
        self.tenancy.end(state)
        self.tenancy.serve_lines()
        self._changed = self.seen

    def _job_moved(self, event: news.JobStarted | news.JobResized) -> None:
        self.tenancy.moved(event)
        self.tenancy.serve_lines()

    def _job_stopped(self, event: news.JobStopped) -> None:
        if self.tenancy.stopped(event):
            self._changed = self.seen
        self.tenancy.serve_lines()

    def _progress_reported(self, event: news.ProgressReported) -> None:
        self.tenancy.progressed(event.job_id, event.done)

    def _known(self, event: news.JobCancelled | news.JobFinished | news.JobFailed) -> JobState:
        state = self.jobs.get(event.job_id)
        if state is None:
            raise UnexpectedEvent(event, "no such job, or it has ended")
        return state

    # ------------------------------------------------------------------ nodes and the market

    def _node_ready(self, event: news.NodeReady) -> None:
        node = self._node(event)
        if node.phase is NodePhase.REQUESTED:  # else it was given back while it booted
            self.supply.ready(node)
            self.tenancy.serve_lines()

    def _node_noticed(self, event: news.NodeNoticed) -> None:
        node = self._node(event)
        if node.phase is not NodePhase.RELEASING:
            self.supply.offering.exposure.lose(node.offer.id, event.at_s)
            self.supply.noticed(node)
            self.tenancy.must_leave(node)
            self._changed = self.seen

    def _node_lost(self, event: news.NodeLost) -> None:
        node = self._node(event)
        if node.phase not in (NodePhase.NOTICED, NodePhase.RELEASING):  # else it was counted, or on its way out
            self.supply.offering.exposure.lose(node.offer.id, event.at_s)
        self.cluster.withdraw(node, NodePhase.RELEASING)  # nobody is to be moved there
        self.tenancy.lost(node, event)
        self.supply.taken(node, event)
        self._changed = self.seen

    def _node_released(self, event: news.NodeReleased) -> None:
        node = self._node(event)
        if node.phase is not NodePhase.RELEASING:
            raise UnexpectedEvent(event, "the node was not being given back")
        if self.supply.released(node, event):
            self._changed = self.seen

    def _rent_refused(self, event: news.RentRefused) -> None:
        node = self._node(event)
        if node.phase not in (NodePhase.REQUESTED, NodePhase.RELEASING):
            raise UnexpectedEvent(event, "the node is ours already")
        self._actions.append(self.supply.refused(node, event.at_s))
        self._changed = self.seen

    def _price_changed(self, event: news.PriceChanged) -> None:
        self.supply.reprice(self._offer_id(event), event.price, event.at_s)
        self._changed = self.seen

    def _availability_changed(self, event: news.AvailabilityChanged) -> None:
        self.supply.restock(self._offer_id(event), event.nodes)
        self._changed = self.seen

    def _offers_changed(self, event: news.OffersChanged) -> None:
        self.supply.reoffer(event.offers, event.limits, event.quotas, event.at_s)
        self._leave_gone_pools()

    def _leave_gone_pools(self) -> None:
        self.tenancy.keep_to(self.pools)
        self._changed = self.seen

    def _budget_changed(self, event: news.BudgetChanged) -> None:
        self.supply.refill(event.budget)
        self.ledger.aim(event.budget.average, event.at_s)
        self._changed = self.seen

    def _node(
        self, event: news.NodeReady | news.NodeNoticed | news.NodeLost | news.NodeReleased | news.RentRefused
    ) -> Node:
        node = self.cluster.nodes.get(event.node_id)
        if node is None:
            raise UnexpectedEvent(event, "no such node, or it is gone")
        return node

    def _offer_id(self, event: news.PriceChanged | news.AvailabilityChanged) -> str:
        if event.offer_id not in self.supply.offers:
            raise UnexpectedEvent(event, "no such offer")
        return event.offer_id

    # ------------------------------------------------------------------ time and plans

    def _timer_fired(self, event: news.TimerFired) -> None:
        match event.timer:
            case CheckPurse():
                return  # to be looked at is all it was for
            case RetryOffer(offer_id):
                self.supply.retry(offer_id)
            case PlanAgain():
                if self._wake_s is None or event.at_s < self._wake_s:
                    return  # it was set anew since
                self._wake_s, self._woken = None, True
            case _:
                assert_never(event.timer)
        self._changed = self.seen

    def _adjust_supply(self) -> None:
        self._actions += self.supply.adjust(self.now_s)
        for node in self.supply.to_clear:
            self.supply.noticed(node)  # it takes no more work, and goes when the last has left
            self.tenancy.clear(node)

    def _watch_purse(self) -> None:
        """Give nodes up in time; until then, be woken when it is time."""
        left, burn = self.supply.purse.until_next_step(self.now_s), self.ledger.burn()
        if left is None or self.supply.purse.broke or burn.micro_usd_per_h == 0:
            return
        lasts_us = left.grains // burn.micro_usd_per_h
        if lasts_us > 1:
            spent_s = self.now_s + (lasts_us - 1) / 1e6
            if spent_s != self._spent_s:
                self._spent_s = spent_s
                self._actions.append(SetTimer(CheckPurse(), spent_s))
            return
        if self.supply.purse.giving_up:
            return  # the reserve of the others lasts until these are gone; then we look again
        nodes = self.supply.give_up_half(self.now_s)
        evicted = {job_id for node in nodes for job_id in node.jobs}
        for job_id in sorted(evicted & self.active.keys()):
            self.tenancy.settle(self.tenancy.promise(self.active[job_id], None))
        self._adjust_supply()
        if self.supply.purse.most_nodes == 0:
            self._actions.append(TellUser(f"{self.supply.budget.purse} are spent: all jobs stop, and can be resumed"))
        self._changed = self.seen

    def _plan_made(self, event: news.PlanMade) -> None:
        self.planning = False
        self._plans_now = self._plans_now + 1 if event.at_s == self._planned_s else 1
        self._planned_s = event.at_s
        stale = event.seen < self._changed  # it did not see everything: the next plan is on its way
        if (refusal := self._refusal(event.plan, stale=stale)) is not None:
            self._refuse(refusal)
            return
        self._refused = 0
        if not stale:
            self._changed, self._woken = 0, False
            self.tenancy.plan_due = False
        self.cluster.packing = event.plan.packing
        self._apply(event.plan)
        self.supply.wish(event.plan.hold)
        self.tenancy.serve_lines()
        self._warn(event.plan)
        again_s = event.plan.ask_again_s
        if again_s is not None and again_s != self._wake_s:
            self._wake_s = max(again_s, self.now_s + SHORTEST_TIMER_S)
            self._actions.append(SetTimer(PlanAgain(), self._wake_s))

    def _warn(self, plan: Plan) -> None:
        for job_id, warning in plan.warnings.items():
            if job_id not in self._warned and job_id in self.jobs:
                self._warned.add(job_id)
                self._actions.append(TellUser(f"{job_id}: {warning}", job_id))

    def _apply(self, plan: Plan) -> None:
        tenancy = self.tenancy
        gaining = []
        for before, shape in shapes_to_promise(plan, self.jobs, self.supply):
            state = tenancy.promise(before, shape)
            if (shape is None or shape.gpus < state.gpus) and tenancy.settle(state):
                continue  # those that give come before those that get
            gaining.append(state)
        for state in gaining:
            tenancy.stand_in_line(state)

    def _refusal(self, plan: Plan, *, stale: bool) -> RefusePlan | None:
        """Why it is not carried out; None = it is."""
        if self._plans_now > MOST_PLANS_AT_ONCE:  # a policy that never comes to rest must not stop the clock
            return RefusePlan("plans at one instant", self._plans_now, MOST_PLANS_AT_ONCE)
        refusal = refuse_wrong_names(plan, self.jobs, self.supply)
        if refusal is None and not stale:
            refusal = refuse_over_limits(plan, self.jobs, self.tenancy.promised, self.supply)
        return refusal

    def _refuse(self, refusal: RefusePlan) -> None:
        """Wait for something to happen, and ask again if nothing does: a policy asked at once would say the same."""
        self._actions.append(refusal)
        again_s = self.now_s + min(REFUSED_AGAIN_S * 2.0**self._refused, REFUSED_AT_MOST_S)
        self._refused += 1
        self._changed = 0
        if self._wake_s is None or not self.now_s < self._wake_s <= again_s:
            self._wake_s = again_s
            self._actions.append(SetTimer(PlanAgain(), again_s))

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """All that it knows, as JSON, but for how fast jobs go; snapshots.py makes a kernel of it again."""
        return {
            "kernel": KERNEL_VERSION,
            "now_s": self.now_s,
            "began_s": self.began_s,
            "seen": self.seen,
            "planning": self.planning,
            "changed": self._changed,
            "wake_s": self._wake_s,
            "woken": self._woken,
            "planned": [self._planned_s, self._plans_now],
            "refused": self._refused,
            "spent_s": self._spent_s,
            "warned": sorted(self._warned),
            "supply": self.supply.facts(),
            "tenancy": self.tenancy.facts(),
        }

    def restore(self, facts: Mapping[str, Any], job_from: Callable[[Mapping[str, Any]], Job]) -> None:
        """Go on from there; made with the offers, limits, quotas and budget of these facts."""
        self.now_s, self.began_s, self.seen = facts["now_s"], facts["began_s"], facts["seen"]
        self.planning, self._changed = facts["planning"], facts["changed"]
        self._wake_s, self._woken = facts["wake_s"], facts["woken"]
        self._planned_s, self._plans_now = facts["planned"]
        self._refused = facts.get("refused", 0)  # not in snapshots before version 3
        self._spent_s, self._warned = facts["spent_s"], set(facts["warned"])
        self.supply.restore(facts["supply"])
        self.tenancy.restore(facts["tenancy"], self.now_s, job_from)


def _subject(event: Event) -> str:
    if isinstance(event, news.JobSubmitted | news.JobChanged):
        return event.job.id
    return str(getattr(event, "job_id", ""))
