"""A cloud and its training processes, in virtual time: carries out the kernel's orders and reports what came of them.

It models what costs real users time and money: boot and release delays, supply that comes and goes, preemption with
and without notice, pauses at every start and resize, and work lost since the last checkpoint.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

import numpy as np

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.domain.job import Job
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import JobState, Phase
from sublet.domain.quantity import at_least
from sublet.domain.seats import Seats, is_spare, seats
from sublet.domain.shape import Placement, Shape
from sublet.domain.timers import PeriodOver, Timer
from sublet.market.replay import Fall, MarketChange, ReadAhead, ReplayedMarket
from sublet.sim.runs import TrainingRun

__all__ = ["FRICTIONLESS", "Agenda", "Happening", "MarketChange", "Physics", "PlanDue", "Tie", "World"]

T = TypeVar("T")


class Tie(IntEnum):
    """The order of things of one instant: the market, then endings, then arrivals, the planner last."""

    MARKET = 0
    NODE = 1
    JOB = 2
    ARRIVAL = 3
    TIMER = 4
    PLANNER = 5


class Agenda(Generic[T]):
    """A priority queue of future happenings."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, T]] = []
        self._count = 0
        self.timers = 0  # how many of the entries are timers: alone, they cannot bring anything new
        self.plans = 0  # and how many are plans to be made, or under way

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """When the next thing happens; of an agenda that is not empty."""
        return self._heap[0][0]

    def put(self, at_s: float, tie: Tie, what: T) -> None:
        """`what` happens at `at_s`."""
        self._count += 1
        self.timers += tie is Tie.TIMER
        self.plans += tie is Tie.PLANNER
        heapq.heappush(self._heap, (at_s, tie, self._count, what))

    def pop(self) -> tuple[float, T]:
        """The next thing and its time."""
        at_s, tie, _, what = heapq.heappop(self._heap)
        self.timers -= tie is Tie.TIMER
        self.plans -= tie is Tie.PLANNER
        return at_s, what


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How long things take here. By default nothing takes time, as in queueing theory."""

    provision_s: float = 0.0  # from renting a node to using it; paid
    release_s: float = 0.0  # from giving it back to the end of its bill
    notice_s: float = 120.0  # what AWS documents before a spot node is taken; best effort
    planning_s: float = 0.0  # how long the policy thinks
    round_s: float = 0.0  # plan only at multiples of this; 0 = at every event that calls for it
    hits_any: bool = False  # a fall hits any of those that the record counts; else only what is held beyond it
    arrives_booted: bool = False  # what comes runs already, as where a record counts running instances
    says_supply: bool = (
        True  # the market says how many nodes there are; else one finds out by asking, as of a real cloud
    )

    def __post_init__(self) -> None:
        for name in ("provision_s", "release_s", "notice_s", "planning_s", "round_s"):
            at_least(name, getattr(self, name), 0.0)


FRICTIONLESS = Physics()


@dataclass(frozen=True, slots=True)
class _End:
    """A job will be done, unless it is moved before."""

    job_id: str
    version: int


@dataclass(frozen=True, slots=True)
class _NodeNews:
    """A node's own event; void if the node is gone by then."""

    event: news.NodeReady | news.NodeReleased


@dataclass(frozen=True, slots=True)
class _ReadOn:
    """Time to read the market one notice ahead."""


@dataclass(frozen=True, slots=True)
class PlanDue:
    """The planner is asked, once everything else of this instant has happened."""


Happening = Event | _End | Fall | _NodeNews | _ReadOn | PlanDue


class World:
    """Answers orders with events, through the agenda."""

    def __init__(
        self,
        offers: Iterable[Offer],
        physics: Physics,
        rng: np.random.Generator,
        market: Iterable[MarketChange] = (),
        *,
        begin_s: float = 0.0,
    ) -> None:
        self.agenda: Agenda[Happening] = Agenda()
        self._physics = physics
        self._offers = {offer.id: offer for offer in offers}
        self._runs: dict[str, TrainingRun] = {}
        self._node_offer: dict[str, str] = {}
        self._nodes: dict[str, dict[str, None]] = defaultdict(dict)  # offer -> nodes that we pay for
        self._doomed: dict[str, tuple[float, float]] = {}  # node -> (noticed, lost)
        self._on_node: dict[str, dict[str, None]] = defaultdict(dict)  # node -> jobs
        self._timers: dict[Timer, float] = {}
        self._market = ReplayedMarket(self._offers, rng, hits_any=physics.hits_any)
        self._booted: dict[str, tuple[float, int]] = {}  # offer -> when nodes came that run, how many are left
        self._ahead = ReadAhead(market, physics.notice_s)
        self._read_market(begin_s)

    def done_at(self, now_s: float) -> dict[str, float]:
        """Work that jobs have done by now, of those that are under way."""
        return {job_id: run.done_at(now_s) for job_id, run in self._runs.items()}

    # ------------------------------------------------------------------ a world that is there already

    def hold(self, node_id: str, offer_id: str, *, ready_s: float | None = None, lost_s: float | None = None) -> None:
        """A node that is paid for: it will be ready, or taken, then."""
        self._node_offer[node_id] = offer_id
        self._nodes[offer_id][node_id] = None
        if ready_s is not None:
            self.agenda.put(ready_s, Tie.NODE, _NodeNews(news.NodeReady(ready_s, node_id)))
        if lost_s is not None:
            self._doomed[node_id] = (lost_s - self._physics.notice_s, lost_s)
            self.agenda.put(lost_s, Tie.MARKET, news.NodeLost(lost_s, node_id))

    def go_on(self, now_s: float, state: JobState, placement: Placement) -> list[Event]:
        """A job that is under way: it trains on; a move that was ordered is made again, and a stop answered.

        Its work counts as saved: the time of its last checkpoint is not known here.
        """
        job = state.job
        run = self._runs[job.id] = TrainingRun(job)
        run.done = run.saved = state.done_at(now_s)
        if state.phase is Phase.STOPPING:
            return [news.JobStopped(now_s, job.id, state.generation, run.done)]
        if state.phase is Phase.WAITING or state.runs_in is None:
            return []
        run.placement, run.shape, run.gpu, run.spread = placement, state.runs_in, state.gpu, state.spread
        for node_id, _ in placement:
            self._on_node[node_id][job.id] = None
        if state.phase in (Phase.STARTING, Phase.RESIZING):
            run.shape = None if state.phase is Phase.STARTING else run.shape
            kind = order.StartJob if state.phase is Phase.STARTING else order.ResizeJob
            return self._move(now_s, kind(job.id, state.generation, state.runs_in, placement))
        if state.phase is Phase.RUNNING:
            run.resumes_s = max(now_s, state.as_of_s)
            run.seats = self._seats(state.runs_in, placement)
            self._foresee_end(run)
        return []

    # ------------------------------------------------------------------ what happens by itself

    def submit(self, job: Job) -> None:
        """The user will bring this job at its time."""
        self.agenda.put(job.submit_s, Tie.ARRIVAL, news.JobSubmitted(job.submit_s, job))

    def occur(self, at_s: float, what: Happening) -> list[Event]:
        """A happening came due: the events that the kernel hears of."""
        if isinstance(what, PlanDue):
            return []
        if isinstance(what, _ReadOn):
            self._read_market(at_s)
            return []
        if isinstance(what, _End):
            return self._end(at_s, what)
        if isinstance(what, _NodeNews):
            return self._node_news(what.event)
        if isinstance(what, Fall):
            return self._notices(at_s, what)
        if isinstance(what, news.NodeLost):
            return self._lose(at_s, what.node_id) if what.node_id in self._node_offer else []
        if isinstance(what, news.AvailabilityChanged):
            return [*([what] if self._physics.says_supply else []), *self._take_back(at_s, what)]
        if isinstance(what, news.PriceChanged):
            return [*self._above_cap(at_s, what), what]
        if isinstance(what, news.TimerFired):
            if self._timers.get(what.timer) != at_s:
                return []  # it was set anew
            del self._timers[what.timer]
        elif isinstance(what, news.JobSubmitted):
            self._runs[what.job.id] = TrainingRun(what.job)
        return [what]

    def _read_market(self, now_s: float) -> None:
        """Put on the agenda what changes until a notice from now, and the moment to read on."""
        for at_s, what in self._ahead.read(now_s):
            self.agenda.put(at_s, Tie.MARKET, what)
        if math.isfinite(self._ahead.next_s):
            self.agenda.put(self._ahead.next_s, Tie.MARKET, _ReadOn())

    def _end(self, at_s: float, end: _End) -> list[Event]:
        run = self._runs.get(end.job_id)
        if run is None or run.version != end.version:
            return []
        self._leave(end.job_id, run)
        del self._runs[end.job_id]
        return [news.JobFinished(at_s, end.job_id)]

    def _node_news(self, event: news.NodeReady | news.NodeReleased) -> list[Event]:
        if event.node_id not in self._node_offer:
            return []  # taken back meanwhile
        if isinstance(event, news.NodeReleased):
            self._drop(event.node_id)
        return [event]

    # ------------------------------------------------------------------ the market takes

    def _notices(self, now_s: float, fall: Fall) -> list[Event]:
        staying = [n for n in self._nodes[fall.offer_id] if n not in self._doomed]
        told: list[Event] = []
        for node_id in self._market.notice(fall, staying):
            self._doomed[node_id] = (now_s, fall.at_s)
            told.append(news.NodeNoticed(now_s, node_id, fall.at_s))
        return told

    def _take_back(self, now_s: float, change: news.AvailabilityChanged) -> list[Event]:
        nodes = list(self._nodes[change.offer_id])
        if self._physics.arrives_booted:
            risen = (change.nodes or 0) - (self._market.stock.supply(change.offer_id) or 0)
            self._booted[change.offer_id] = (now_s, risen)
        lost_s = {node_id: self._doomed[node_id][1] for node_id in nodes if node_id in self._doomed}
        lost = self._market.resupply(change, nodes, lost_s, now_s)
        return [event for node_id in lost for event in self._lose(now_s, node_id)]

    def _above_cap(self, now_s: float, change: news.PriceChanged) -> list[Event]:
        lost = self._market.reprice(change, list(self._nodes[change.offer_id]))
        return [event for node_id in lost for event in self._lose(now_s, node_id)]

    def _lose(self, now_s: float, node_id: str) -> list[Event]:
        told: list[Event] = [news.NodeLost(now_s, node_id)]
        noticed_s = self._doomed.get(node_id, (now_s, now_s))[0]
        for job_id in list(self._on_node[node_id]):
            run = self._runs[job_id]
            warned = now_s - noticed_s >= run.job.checkpoint_write_s and noticed_s < now_s
            trained = run.resumes_s < math.inf
            if trained and node_id in run.seats and is_spare(run.seats[node_id]):
                run.lose(node_id)
                run.placement = tuple(part for part in run.placement if part[0] != node_id)
                continue  # it trains on
            run.halt(now_s)
            run.lose(node_id)
            run.placement = tuple(part for part in run.placement if part[0] != node_id)
            if warned:
                run.save()
            elif not run.is_alive if run.job.survives else trained:
                run.step_back()
            told.append(news.ProgressReported(now_s, job_id, run.done))
        self._drop(node_id)
        return told

    def _drop(self, node_id: str) -> None:
        del self._nodes[self._node_offer.pop(node_id)][node_id]
        self._doomed.pop(node_id, None)
        self._on_node.pop(node_id, None)

    # ------------------------------------------------------------------ orders

    def obey(self, now_s: float, action: Action) -> list[Event]:
        """Carry out one order; the events that come of it at once (others follow through the agenda)."""
        match action:
            case order.MakePlan():
                return self._ask_planner(now_s)
            case order.StartJob() | order.ResizeJob():
                return self._move(now_s, action)
            case order.PrepareJob():
                self._runs[action.job_id].prepare(action.shape, now_s)
                return []
            case order.StopJob():
                return self._stop(now_s, action)
            case order.RentNode():
                return self._rent(now_s, action)
            case order.ReleaseNode():
                return self._release(now_s, action)
            case order.SetTimer():
                return self._set_timer(now_s, action)
            case order.TellUser():
                return []
            case order.RefusePlan():
                raise action.error(now_s)  # in virtual time nothing is gained by asking again

    def _move(self, now_s: float, action: order.StartJob | order.ResizeJob) -> list[Event]:
        run = self._runs[action.job_id]
        run.halt(now_s)
        stays = {node_id for node_id, _ in action.placement}
        for node_id, _ in run.placement:
            if node_id in self._doomed and node_id not in stays:
                run.lose(node_id)
        self._leave(action.job_id, run)
        run.placement = action.placement
        run.spread = tuple(gpus for _, gpus in action.placement)
        gone = [node_id for node_id, _ in action.placement if node_id not in self._node_offer]
        for node_id, _ in action.placement:
            if node_id not in gone:
                self._on_node[node_id][action.job_id] = None
        if gone:  # lost at this very instant; the kernel hears of it next, and moves the job again
            run.placement = tuple(part for part in action.placement if part[0] not in gone)
            return []
        run.gpu = self._offers[self._node_offer[action.placement[0][0]]].gpu
        run.resumes_s = run.change_to(action.shape, now_s)
        run.seats = self._seats(action.shape, action.placement)
        self._foresee_end(run)
        answer = news.JobStarted if isinstance(action, order.StartJob) else news.JobResized
        return [answer(now_s, action.job_id, action.generation, run.done, run.resumes_s)]

    def _foresee_end(self, run: TrainingRun) -> None:
        needs_s = run.job.speed_on(run.shape).seconds(run.gpu, run.spread, run.done, run.job.work)
        if math.isfinite(needs_s):
            self.agenda.put(run.resumes_s + needs_s, Tie.JOB, _End(run.job.id, run.version))

    def _seats(self, shape: Shape, placement: Placement) -> Seats:
        if shape.grid is None or not shape.is_seated:
            return {}
        markets = {node_id: self._offers[self._node_offer[node_id]].market for node_id, _ in placement}
        return seats(placement, shape.grid, {n for n, market in markets.items() if market is Market.ON_DEMAND})

    def _stop(self, now_s: float, action: order.StopJob) -> list[Event]:
        run = self._runs[action.job_id]
        run.halt(now_s)
        run.forget()
        self._leave(action.job_id, run)
        if not action.resumable:
            del self._runs[action.job_id]
            return []
        return [news.JobStopped(now_s, action.job_id, action.generation, run.done)]

    def _rent(self, now_s: float, action: order.RentNode) -> list[Event]:
        sold_out = self._market.is_sold_out(action.offer_id, len(self._nodes[action.offer_id]))
        if sold_out or action.offer_id in self._market.too_dear:
            return [news.RentRefused(now_s, action.node_id)]
        self._node_offer[action.node_id] = action.offer_id
        self._nodes[action.offer_id][action.node_id] = None
        ready = news.NodeReady(now_s + self._provision_s(now_s, action.offer_id), action.node_id)
        if ready.at_s == now_s:
            return [ready]
        self.agenda.put(ready.at_s, Tie.NODE, _NodeNews(ready))
        return []

    def _provision_s(self, now_s: float, offer_id: str) -> float:
        since_s, left = self._booted.get(offer_id, (-1.0, 0))
        if since_s != now_s or left < 1:
            return self._physics.provision_s
        self._booted[offer_id] = (now_s, left - 1)
        return 0.0

    def _release(self, now_s: float, action: order.ReleaseNode) -> list[Event]:
        released = news.NodeReleased(now_s + self._physics.release_s, action.node_id)
        if self._physics.release_s == 0.0:
            return self._node_news(released)
        self.agenda.put(released.at_s, Tie.NODE, _NodeNews(released))
        return []

    def _set_timer(self, now_s: float, action: order.SetTimer) -> list[Event]:
        at_s = max(action.at_s, now_s)
        self._timers[action.timer] = at_s
        tie = Tie.MARKET if isinstance(action.timer, PeriodOver) else Tie.TIMER  # new money: it may change everything
        self.agenda.put(at_s, tie, news.TimerFired(at_s, action.timer))
        return []

    def _ask_planner(self, now_s: float) -> list[Event]:
        round_s = self._physics.round_s
        due_s = max(now_s, math.ceil(now_s / round_s) * round_s) if round_s else now_s
        self.agenda.put(due_s, Tie.PLANNER, PlanDue())
        return []

    def _leave(self, job_id: str, run: TrainingRun) -> None:
        for node_id, _ in run.placement:
            self._on_node[node_id].pop(job_id, None)
        run.placement = ()
