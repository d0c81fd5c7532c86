"""Event in, actions out.

The kernel keeps what is promised (a shape per job, nodes per offer) apart from what is (GPUs held, nodes ready), and
after every event orders whatever brings the second closer to the first. It never waits and never asks: whatever takes
time is an order now and an event later, and `generation` tells a late answer from a fresh one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import Event
from sublet.domain.money import Price
from sublet.domain.offer import Offer
from sublet.domain.plan import JobState, OfferState, Phase, Plan, PoolState, Snapshot
from sublet.domain.shape import Placement, Shape
from sublet.errors import InvalidValue, PlanRefused, UnexpectedEvent
from sublet.kernel.cluster import Cluster, Node, NodePhase
from sublet.kernel.ledger import Ledger
from sublet.kernel.waiting import Waiting

__all__ = ["Kernel"]

REFUSED_AGAIN_S = 60.0  # after a refusal, the offer counts as sold out for this long (unless the market says otherwise)
SHORTEST_TIMER_S = 0.001  # a policy that asks to be asked again at once must not stop the clock
IN_TRANSIT = frozenset({Phase.STARTING, Phase.RESIZING, Phase.STOPPING})


class Kernel:
    """The state of everything rented and everything run, advanced by `handle`."""

    def __init__(
        self, offers: Sequence[Offer], *, limits: Mapping[str, Limit] | None = None, budget: Budget = UNLIMITED
    ) -> None:
        if not offers:
            raise InvalidValue("offers", offers, "at least one offer")
        self.now_s = 0.0
        self.seen = 0
        self.budget = budget
        self.offers = {offer.id: offer for offer in offers}
        self.limits = {offer.id: (limits or {}).get(offer.id, Limit()) for offer in offers}
        self.pools = _pools_from_offers(offers)
        self.cluster = Cluster()
        self.ledger = Ledger(offers)
        self.jobs: dict[str, JobState] = {}  # every job that has not ended
        self.active: dict[str, JobState] = {}  # those with a shape
        self.waiting = Waiting()  # those without
        self.placement: dict[str, Placement] = {}  # GPUs that a job holds
        self.leaving: dict[str, Placement] = {}  # GPUs that it gives up when its resize is done
        self.unsettled: dict[str, dict[str, None]] = defaultdict(dict)  # pool -> jobs that need GPUs, first in line first
        self.promised: dict[str, int] = dict.fromkeys(self.pools, 0)  # pool -> GPUs
        self.hold: dict[str, int] = {offer.id: self.limits[offer.id].min_nodes for offer in offers}
        self.available: dict[str, int | None] = dict.fromkeys(self.offers, None)
        self.sold_out: dict[str, int] = {}  # offer -> nodes held when the cloud refused more
        self.planning = False  # a MakePlan is open
        self._ordered: dict[str, Shape] = {}  # shape of the last start or resize
        self._stories: dict[str, list[Event | Action]] = {}
        self._submitted = 0
        self._rented = 0
        self._changed = 0  # value of `seen` at the last event that calls for a plan
        self._wake_s: float | None = None
        self._supply_changed = True
        self._actions: list[Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            news.JobSubmitted: self._job_submitted,
            news.JobCancelled: self._job_cancelled,
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
            news.BudgetChanged: self._budget_changed,
            news.TimerFired: self._timer_fired,
            news.PlanMade: self._plan_made,
        }

    # ------------------------------------------------------------------ the two public verbs

    def handle(self, event: Event) -> list[Action]:
        """Take one event in; give the orders that follow from it."""
        if not event.at_s >= self.now_s:  # also refuses NaN
            raise UnexpectedEvent(event, f"time went back from {self.now_s} s", self.story(_subject(event)))
        self.now_s = event.at_s
        self.seen += 1
        self._actions = []
        self._handlers[type(event)](event)
        if self._supply_changed:
            self._adjust_supply()
        if self._changed and not self.planning:
            self.planning = True
            self._actions.append(order.MakePlan())
        return self._actions

    def snapshot(self, *, frozen: bool = False) -> Snapshot:
        """What a policy may know now; `frozen` copies it, for a planner that runs aside."""
        return Snapshot(
            now_s=self.now_s,
            seen=self.seen,
            waiting=self.waiting.frozen() if frozen else self.waiting,
            active=dict(self.active) if frozen else MappingProxyType(self.active),
            offers={offer_id: self._offer_state(offer_id) for offer_id in self.offers},
            pools={name: replace(pool, promised=self.promised[name]) for name, pool in self.pools.items()},
            budget=self.budget,
            spent=self.ledger.spent(self.now_s),
        )

    def story(self, job_id: str) -> list[str]:
        """What happened to a job so far, oldest first."""
        return [str(chapter) for chapter in self._stories.get(job_id, ())]

    # ------------------------------------------------------------------ jobs

    def _job_submitted(self, event: news.JobSubmitted) -> None:
        job = event.job
        if job.id in self.jobs:
            raise UnexpectedEvent(event, "a job of this name is here already", self.story(job.id))
        state = JobState(job=job, seq=self._submitted, as_of_s=event.at_s, held_since_s=event.at_s)
        self._submitted += 1
        self._stories[job.id] = [event]
        self.jobs[job.id] = state
        self.waiting.add(state)
        self._changed = self.seen

    def _job_cancelled(self, event: news.JobCancelled) -> None:
        state = self._known(event, event.job_id)
        if state.phase is not Phase.WAITING:
            self._actions.append(order.StopJob(event.job_id, state.generation + 1, resumable=False))
        self._end(state)

    def _job_moved(self, event: news.JobStarted | news.JobResized) -> None:
        state = self.jobs.get(event.job_id)
        if state is None or event.generation != state.generation or state.phase not in IN_TRANSIT:
            return  # late news: it ended, was ordered elsewhere, or lost a node meanwhile
        if state.phase is Phase.STOPPING:
            raise UnexpectedEvent(event, "the job was told to stop", self.story(event.job_id))
        self._stories[event.job_id].append(event)
        self._let_go(event.job_id)
        state = replace(state, phase=Phase.RUNNING, done=event.done, as_of_s=event.resumes_s)
        self._store(state)
        if not self._settle(state):
            self._queue(state)
        self._serve_queues()

    def _job_stopped(self, event: news.JobStopped) -> None:
        state = self.jobs.get(event.job_id)
        if state is None or event.generation != state.generation or state.phase is not Phase.STOPPING:
            return
        self._stories[event.job_id].append(event)
        self._vacate(event.job_id)
        state = replace(
            state,
            phase=Phase.WAITING,
            gpus=0,
            spread=(),
            done=event.done,
            as_of_s=event.at_s,
            gpu_s=state.attained_gpu_s(event.at_s),
            held_since_s=event.at_s,
        )
        self.jobs[event.job_id] = state
        if state.shape is None:
            self.waiting.add(state)
        else:
            self.active[event.job_id] = state
            self._queue(state)
        self._serve_queues()

    def _progress_reported(self, event: news.ProgressReported) -> None:
        state = self.jobs.get(event.job_id)
        if state is None:
            return
        as_of_s = max(event.at_s, state.as_of_s) if state.phase is Phase.RUNNING else event.at_s
        state = replace(state, done=event.done, as_of_s=as_of_s)
        if event.job_id in self.waiting:  # its place in the orders may change
            self.waiting.remove(event.job_id)
            self.waiting.add(state)
        self._store(state)

    def _job_ended(self, event: news.JobFinished | news.JobFailed) -> None:
        self._end(self._known(event, event.job_id))
        self._serve_queues()

    def _end(self, state: JobState) -> None:
        job_id = state.job.id
        self._vacate(job_id)
        self._promise(state, None)
        if job_id in self.waiting:
            self.waiting.remove(job_id)
        self.active.pop(job_id, None)
        self._ordered.pop(job_id, None)
        del self.jobs[job_id], self._stories[job_id]
        self._changed = self.seen

    def _known(self, event: Event, job_id: str) -> JobState:
        state = self.jobs.get(job_id)
        if state is None:
            raise UnexpectedEvent(event, "no such job, or it has ended")
        return state

    # ------------------------------------------------------------------ nodes and the market

    def _node(self, event: Event, node_id: str) -> Node:
        node = self.cluster.nodes.get(node_id)
        if node is None:
            raise UnexpectedEvent(event, "no such node, or it is gone")
        return node

    def _node_ready(self, event: news.NodeReady) -> None:
        node = self._node(event, event.node_id)
        if node.phase is NodePhase.REQUESTED:  # else it was given back while it booted
            self.cluster.ready(node)
            self._serve_queues()
            self._supply_changed = True

    def _node_noticed(self, event: news.NodeNoticed) -> None:
        node = self._node(event, event.node_id)
        if node.phase is NodePhase.RELEASING:
            return
        self.cluster.withdraw(node, NodePhase.NOTICED)
        for job_id in node.jobs:
            self._queue(self.jobs[job_id])
        self._supply_changed = True
        self._changed = self.seen

    def _node_lost(self, event: news.NodeLost) -> None:
        node = self._node(event, event.node_id)
        for job_id in list(node.jobs):
            state = self.jobs[job_id]
            self._stories[job_id].append(event)
            self._forget_node(job_id, node.id)
            if state.phase is Phase.STOPPING:
                continue  # what it saved is what it comes back with
            rest = self.placement[job_id]
            state = self._held(state, rest, Phase.BROKEN)
            self._store(state)
            self._queue(state)
        self.cluster.remove(node)
        self.ledger.close(node.id, event.at_s)
        self._supply_changed = True
        self._changed = self.seen

    def _node_released(self, event: news.NodeReleased) -> None:
        node = self._node(event, event.node_id)
        if node.phase is not NodePhase.RELEASING:
            raise UnexpectedEvent(event, "the node was not being given back")
        self.cluster.remove(node)
        self.ledger.close(node.id, event.at_s)
        self._supply_changed = True

    def _rent_refused(self, event: news.RentRefused) -> None:
        node = self._node(event, event.node_id)
        offer_id = node.offer.id
        self.cluster.remove(node)
        self.ledger.void(node.id, event.at_s)
        self.sold_out[offer_id] = self.cluster.held[offer_id]
        self._actions.append(order.SetTimer(f"retry {offer_id}", event.at_s + REFUSED_AGAIN_S))
        self._changed = self.seen

    def _price_changed(self, event: news.PriceChanged) -> None:
        self.ledger.reprice(event.offer_id, event.price, event.at_s)
        self._supply_changed = True
        self._changed = self.seen

    def _availability_changed(self, event: news.AvailabilityChanged) -> None:
        self.available[event.offer_id] = event.nodes
        self.sold_out.pop(event.offer_id, None)
        self._supply_changed = True
        self._changed = self.seen

    def _budget_changed(self, event: news.BudgetChanged) -> None:
        self.budget = event.budget
        self._supply_changed = True
        self._changed = self.seen

    def _timer_fired(self, event: news.TimerFired) -> None:
        purpose, _, offer_id = event.timer.partition(" ")
        if purpose == "retry":
            self.sold_out.pop(offer_id, None)
            self._supply_changed = True
        elif self._wake_s is not None and event.at_s >= self._wake_s:
            self._wake_s = None
        else:
            return  # a timer that was set anew since
        self._changed = self.seen

    # ------------------------------------------------------------------ plans

    def _plan_made(self, event: news.PlanMade) -> None:
        self.planning = False
        if event.seen >= self._changed:
            self._changed = 0
        plan = event.plan
        gaining = []
        for job_id, shape in plan.shapes.items():
            state = self.jobs.get(job_id)
            if state is None or state.shape == shape:
                continue  # it ended meanwhile, or has it already
            if shape is not None and shape.pool not in self.pools:
                raise InvalidValue(f"shapes[{job_id}].pool", shape.pool, "one of " + ", ".join(self.pools))
            state = self._promise(state, shape)
            if shape is None or shape.gpus < state.gpus:
                self._settle(state)  # those that give come before those that get
            else:
                gaining.append(state)
        for state in gaining:
            self._queue(state)
        for offer_id, nodes in plan.hold.items():
            self.hold[offer_id] = max(nodes, self.limits[offer_id].min_nodes)
        self._supply_changed = True
        self._check_within_limits(fresh=not self._changed)
        self._serve_queues()
        if plan.ask_again_s is not None and plan.ask_again_s != self._wake_s:
            self._wake_s = max(plan.ask_again_s, self.now_s + SHORTEST_TIMER_S)
            self._actions.append(order.SetTimer("plan", self._wake_s))

    def _promise(self, state: JobState, shape: Shape | None) -> JobState:
        """Note what a job shall have; the GPUs follow as they become free."""
        job_id = state.job.id
        if state.shape is not None:
            self.promised[state.shape.pool] -= state.shape.gpus
            self.unsettled[state.shape.pool].pop(job_id, None)
        was_waiting = job_id in self.waiting
        if was_waiting and shape is not None:
            self.waiting.remove(job_id)
        state = replace(state, shape=shape)
        self.jobs[job_id] = state
        if shape is not None:
            self.promised[shape.pool] += shape.gpus
            self.active[job_id] = state
        else:
            self.active.pop(job_id, None)
            if state.phase is Phase.WAITING and not was_waiting:
                self.waiting.add(state)
        return state

    def _check_within_limits(self, *, fresh: bool) -> None:
        """A plan that saw everything must fit what may be held; a stale one is about to be replaced."""
        if not fresh:
            return
        for name, pool in self.pools.items():
            most = sum(self._offer_state(o).most for o in pool.offer_ids) * pool.gpus_per_node
            if self.promised[name] > most:
                raise PlanRefused(f"GPUs in pool {name}", needed=self.promised[name], available=most, now_s=self.now_s)
        burn = self.budget.burn
        if burn is not None:
            wanted = sum(nodes * self.ledger.price(o).micro_usd_per_h for o, nodes in self.hold.items())
            if wanted > burn.micro_usd_per_h:
                needed = Price(wanted).usd_per_h
                raise PlanRefused("USD/h of budget", needed=needed, available=burn.usd_per_h, now_s=self.now_s)

    # ------------------------------------------------------------------ from promises to orders

    def _queue(self, state: JobState) -> None:
        if state.shape is not None:
            self.unsettled[state.shape.pool][state.job.id] = None

    def _serve_queues(self) -> None:
        """Give free GPUs to the jobs in line, first in line first, until the first that must go on waiting."""
        for pool, line in self.unsettled.items():
            while line:
                job_id = next(iter(line))
                if not self._settle(self.jobs[job_id]):
                    break
                self.unsettled[pool].pop(job_id, None)

    def _settle(self, state: JobState) -> bool:
        """Order what brings the job to its promised shape; False = not enough free GPUs yet."""
        if state.phase in IN_TRANSIT:
            return True  # looked at again when the answer comes
        job_id, shape = state.job.id, state.shape
        held = self.placement.get(job_id, ())
        if shape is None or (held and self.cluster.nodes[held[0][0]].offer.pool != shape.pool):
            if state.phase is not Phase.WAITING:
                self._order_stop(state)
            return True
        kept = self.cluster.healthy(held)
        placement = self.cluster.rearranged(shape.pool, kept, shape.gpus)
        if placement is None:
            return False
        if state.phase is Phase.RUNNING and placement == held and self._ordered.get(job_id) == shape:
            return True
        self._order_move(state, shape, placement)
        return True

    def _order_stop(self, state: JobState) -> None:
        state = replace(self._held(state, self.placement[state.job.id], Phase.STOPPING), generation=state.generation + 1)
        self._store(state)
        self._order(order.StopJob(state.job.id, state.generation))

    def _order_move(self, state: JobState, shape: Shape, placement: Placement) -> None:
        job_id = state.job.id
        held, new = dict(self.placement.get(job_id, ())), dict(placement)
        for node_id, gpus in new.items():
            if gpus > held.get(node_id, 0):
                self.cluster.take(job_id, node_id, gpus - held.get(node_id, 0))
        leaving = tuple((n, g - new.get(n, 0)) for n, g in held.items() if g > new.get(n, 0))
        if leaving:
            self.leaving[job_id] = leaving
        self.placement[job_id] = placement
        self._ordered[job_id] = shape
        first = state.phase is Phase.WAITING
        state = self._held(state, placement, Phase.STARTING if first else Phase.RESIZING)
        state = replace(state, generation=state.generation + 1, gpu=self.pools[shape.pool].gpu)
        self._store(state)
        move = order.StartJob if first else order.ResizeJob
        self._order(move(job_id, state.generation, shape, placement))

    def _order(self, action: order.StartJob | order.ResizeJob | order.StopJob) -> None:
        self._stories[action.job_id].append(action)
        self._actions.append(action)

    def _held(self, state: JobState, placement: Placement, phase: Phase) -> JobState:
        """The state with its work and service brought up to now, and new GPUs under it."""
        spread = tuple(gpus for _, gpus in placement)
        return replace(
            state,
            phase=phase,
            gpus=sum(spread),
            spread=spread,
            done=state.done_at(self.now_s),
            as_of_s=self.now_s,
            gpu_s=state.attained_gpu_s(self.now_s),
            held_since_s=self.now_s,
        )

    def _store(self, state: JobState) -> None:
        self.jobs[state.job.id] = state
        if state.shape is not None:
            self.active[state.job.id] = state

    def _let_go(self, job_id: str) -> None:
        for node_id, gpus in self.leaving.pop(job_id, ()):
            self.cluster.give(job_id, node_id, gpus)
            self._supply_changed = True

    def _vacate(self, job_id: str) -> None:
        self._let_go(job_id)
        for node_id, gpus in self.placement.pop(job_id, ()):
            self.cluster.give(job_id, node_id, gpus)
            self._supply_changed = True

    def _forget_node(self, job_id: str, node_id: str) -> None:
        self.placement[job_id] = tuple(part for part in self.placement.get(job_id, ()) if part[0] != node_id)
        leaving = tuple(part for part in self.leaving.pop(job_id, ()) if part[0] != node_id)
        if leaving:
            self.leaving[job_id] = leaving

    def _adjust_supply(self) -> None:
        """Give back what is not wanted, then rent what is missing, as far as limits and budget let us."""
        self._supply_changed = False
        cluster = self.cluster
        for offer_id, wanted in self.hold.items():
            excess = cluster.held[offer_id] - wanted
            if excess > 0:  # nodes still booting go first: those that are ready can take work now
                spare = [*cluster.requested[offer_id], *reversed(cluster.idle[offer_id])]
                for node_id in spare[:excess]:
                    self._release(cluster.nodes[node_id])
        for node in [n for n in cluster.nodes.values() if n.phase is NodePhase.NOTICED and n.idle]:
            self._release(node)
        for offer_id, wanted in self.hold.items():
            most = self._offer_state(offer_id).most
            while cluster.held[offer_id] < min(wanted, most) and self._affords(offer_id):
                self._rented += 1
                node_id = f"n{self._rented}"
                cluster.add(node_id, self.offers[offer_id])
                self.ledger.open(node_id, offer_id, self.now_s)
                self._actions.append(order.RentNode(node_id, offer_id))

    def _release(self, node: Node) -> None:
        self.cluster.withdraw(node, NodePhase.RELEASING)
        self._actions.append(order.ReleaseNode(node.id))

    def _affords(self, offer_id: str) -> bool:
        burn = self.budget.burn
        if burn is None:
            return True
        after = self.ledger.burn().micro_usd_per_h + self.ledger.price(offer_id).micro_usd_per_h
        return after <= burn.micro_usd_per_h

    def _offer_state(self, offer_id: str) -> OfferState:
        bounds = [b for b in (self.available[offer_id], self.sold_out.get(offer_id)) if b is not None]
        return OfferState(
            offer=self.offers[offer_id],
            price=self.ledger.price(offer_id),
            limit=self.limits[offer_id],
            held=self.cluster.held[offer_id],
            available=min(bounds) if bounds else None,
        )


def _pools_from_offers(offers: Sequence[Offer]) -> dict[str, PoolState]:
    pools: dict[str, PoolState] = {}
    for offer in offers:
        pool = pools.get(offer.pool)
        if pool is None:
            pools[offer.pool] = PoolState(
                name=offer.pool, gpu=offer.gpu, gpus_per_node=offer.gpus_per_node, promised=0, offer_ids=(offer.id,)
            )
        elif (pool.gpu, pool.gpus_per_node) != (offer.gpu, offer.gpus_per_node):
            kinds = f"{pool.gpu} x {pool.gpus_per_node} like the others of pool {offer.pool}"
            raise InvalidValue(f"offer {offer.id}", f"{offer.gpu} x {offer.gpus_per_node}", kinds)
        else:
            pools[offer.pool] = replace(pool, offer_ids=(*pool.offer_ids, offer.id))
    return pools


def _subject(event: Event) -> str:
    if isinstance(event, news.JobSubmitted):
        return event.job.id
    return str(getattr(event, "job_id", ""))
