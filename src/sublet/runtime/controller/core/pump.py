"""The inbox itself: what is told waits in line, is heard by the kernel in batches, and is in the log before it is done.

    tell, queue -> kernel -> events and orders in one commit -> orders are carried out, groups say what they have to say

A batch is all that waits. When the store fails nothing more is done, for nothing may be done whose intent is not
written down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, assert_never

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action, RefusePlan
from sublet.domain.budget import Level
from sublet.domain.events import Event
from sublet.domain.timers import Timer
from sublet.errors import StaleController, StoreFailed, SubletError
from sublet.kernel.cluster import NodePhase
from sublet.kernel.journal import line_from
from sublet.kernel.kernel import Kernel
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core.decisions import Decisions, DeferredPlans
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.jobs import Groups
from sublet.runtime.controller.memory import Context
from sublet.runtime.controller.money import Bill
from sublet.runtime.controller.nodes import Leases
from sublet.runtime.controller.watch import AlarmKind, Alarms, Chronicle, HistoryRow, refusal_among
from sublet.runtime.store import STORE_FAILURES, Store, next_step


class Timers:
    """Those that run."""

    def __init__(self, inbox: Inbox, clock: Clock) -> None:
        self._inbox, self._clock = inbox, clock
        self._handles: dict[Timer, asyncio.TimerHandle] = {}

    def set(self, action: order.SetTimer) -> None:
        """From now on; if it runs, that is forgotten."""
        if (old := self._handles.pop(action.timer, None)) is not None:
            old.cancel()
        wall_s = max(0.0, self._clock.wall_s(action.at_s - self._inbox.now_s()))

        def fire() -> None:
            self._handles.pop(action.timer, None)
            self._inbox.tell(news.TimerFired(max(self._inbox.now_s(), action.at_s), action.timer))

        self._handles[action.timer] = asyncio.get_running_loop().call_later(wall_s, fire)

    def resume(self, action: order.SetTimer) -> None:
        """One that an earlier controller set, unless this one has set it anew already."""
        if action.timer not in self._handles:
            self.set(action)

    def cancel_all(self) -> None:
        """None fires any more."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()


class Orders:
    """Of one controller."""

    def __init__(
        self, context: Context, groups: Groups, leases: Leases, decisions: Decisions, deferred: DeferredPlans
    ) -> None:
        self._inbox, self._groups, self._leases = context.inbox, groups, leases
        self._decisions, self._deferred = decisions, deferred
        self.timers = Timers(context.inbox, context.host.clock)
        self.holding = False  # orders to jobs wait until it is known which still run: recovery then gives them

    def carry_out(self, action: Action) -> None:
        """An order of the kernel, which is in the log."""
        match action:
            case order.MakePlan():
                self._inbox.spawn(self._decide(), "plan")
            case order.RentNode():
                self._inbox.spawn(self._leases.rent(action), f"rent {action.node_id}")
            case order.ReleaseNode():
                self._inbox.spawn(self._leases.release(action.node_id), f"release {action.node_id}")
            case order.SetTimer():
                self.timers.set(action)
            case order.StartJob() | order.ResizeJob() | order.StopJob():
                if not self.holding:
                    self._groups.carry_out(action)
            case order.PrepareJob():
                self._groups.prepare(action.job_id, action.shape.grid)
            case order.TellUser():
                log.info("%s", action.text)
            case order.RefusePlan():
                log.error("%s", action.error(self._inbox.kernel.now_s))
            case _:
                assert_never(action)

    async def _decide(self) -> None:
        await self._decisions.make()
        self._deferred.explain()

    def take_plan(self, event: news.PlanMade, refusal: order.RefusePlan | None) -> None:
        """The kernel has taken a plan, or refused it."""
        self._decisions.take(event, refusal)

    def drain(self) -> None:
        """Let groups say what they have to say, to agents and to the kernel."""
        self._groups.drain()


log = logging.getLogger("sublet.controller")
TIMES = ("at_s", "billed_from_s", "billed_to_s", "lost_s", "resumes_s")  # of events


class Journal(Protocol):
    """The writer of what the next controller starts from, beside the log."""

    def follow(self, event: Event, actions: list[Action]) -> None:
        """One more event is in the log."""

    def write_if_due(self) -> None:
        """In the transaction of the events."""


class Departures(Protocol):
    """Nodes that go, for those that have workers there. Neither raises anything."""

    def after_notice(self, event: news.NodeNoticed) -> None:
        """A node will be taken, and the kernel knows."""

    def before_loss(self, event: news.NodeLost | news.NodeSilent) -> Sequence[Event]:
        """A node goes; what the kernel is to hear before it hears of that."""


class Outlet(Protocol):
    """Where orders go."""

    def take_plan(self, event: news.PlanMade, refusal: RefusePlan | None) -> None:
        """The kernel has taken a plan, or refused it."""

    def carry_out(self, action: Action) -> None:
        """An order of the kernel, which is in the log."""

    def drain(self) -> None:
        """Let groups say what they have to say, to agents and to the kernel."""


class Pump:
    """An `Inbox` over one kernel and one store. `connect` it before anything is told."""

    def __init__(self, kernel: Kernel, *, store: Store, clock: Clock, bill: Bill, chronicle: Chronicle) -> None:
        self.kernel = kernel
        self._store, self._clock, self._bill, self._chronicle = store, clock, bill, chronicle
        self.ended = asyncio.Event()  # nothing is heard or done from now on
        self.failure: Exception | None = None  # why, if it had to
        self._pending: deque[Event] = deque()
        self._pumping = self._waking = False
        self._listening = True
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, *, journal: Journal, departures: Departures, outlet: Outlet, alarms: Alarms) -> None:
        """With parts that themselves need an inbox."""
        self._journal, self._departures, self._outlet, self._alarms = journal, departures, outlet, alarms

    def adopt(self, kernel: Kernel) -> None:
        """Go on with this one, which has lived already."""
        self.kernel = self._bill.kernel = kernel

    # ------------------------------------------------------------------ what the parts see

    def now_s(self) -> float:
        """Cloud time; never before the kernel's own."""
        return max(self._clock.now_s(), self.kernel.now_s)

    def tell(self, event: Event) -> None:
        """Something happened: the kernel hears of it now, or after what it is busy with."""
        self._pending.append(event)
        if not self._pumping and not self.ended.is_set():
            self._pump()

    def queue(self, event: Event) -> None:
        """As `tell`, for one that is heard together with others, at the next `wake`."""
        self._pending.append(event)

    def wake(self) -> None:
        """Hear what was queued as soon as all that speak now have spoken: one commit for all of them."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self.carry_on)

    def note(self, row: HistoryRow) -> None:
        """Something for the history alone."""
        self._chronicle.note(row)
        self.wake()

    @contextmanager
    def asked_by(self, user: str) -> Iterator[None]:
        """Events meanwhile follow from the wish of a user. Nothing may be awaited in it."""
        self._chronicle.by = user
        try:
            yield
        finally:
            self._chronicle.by = ""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do it beside everything else; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            if isinstance(error, STORE_FAILURES):
                self.fail(error)

    # ------------------------------------------------------------------ for recovery and the end

    def stop_listening(self) -> None:
        """The kernel hears nothing until `hear_first`, and nothing is booked."""
        self._listening, self._bill.waits = False, True

    def hear_first(self, sort: Callable[[list[Event]], list[Event]]) -> None:
        """Listen again, to what was told meanwhile in another order."""
        self._pending = deque(sort(list(self._pending)))
        self._listening, self._bill.waits = True, False
        self.carry_on()

    @property
    def waiting(self) -> Sequence[Event]:
        """Events that the kernel has not heard."""
        return tuple(self._pending)

    def set_back(self, by_s: float) -> None:
        """The clock was ahead by so much, and so is all that was told since the kernel hears nothing."""
        self._pending = deque(_earlier(event, by_s) for event in self._pending)

    def carry_on(self) -> None:
        """Let groups say what they have to say, now, and the kernel hear it."""
        self._waking = False
        if self._listening and not self._pumping and not self.ended.is_set():
            try:
                self._store.insist()  # what groups say to agents is in no transaction
                self._outlet.drain()  # how a job ended is written down at once
            except STORE_FAILURES as error:
                self.fail(error)
                return
            self._pump()

    def fail(self, error: Exception) -> SubletError:
        """The store does not work, or is another controller's now: why this one ends."""
        if isinstance(error, StaleController):
            log.critical("another controller goes on: this one does nothing more", exc_info=error)
            failure: SubletError = error
            for task in self._tasks:
                task.cancel()  # what it was about to do is the other's to do
        else:
            log.critical("the store failed: nothing more is done; agents end with their lease", exc_info=error)
            failure = StoreFailed(self._store.path, f"cannot be written ({error})", hint=next_step(error))
        self.failure = failure
        self.ended.set()
        return failure

    async def end_tasks(self) -> None:
        """All that was spawned."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ the pump

    def _pump(self) -> None:
        if not self._listening:
            return
        self._pumping = True
        try:
            while self._pending:
                orders: list[Action] = []
                with self._store.transaction():
                    while self._pending:
                        orders += self._handle(self._pending.popleft())
                    self._journal.write_if_due()
                    self._chronicle.write(self.kernel, self.kernel.now_s)
                for action in orders:
                    self._outlet.carry_out(action)
                self._outlet.drain()
            if self._chronicle.waits:
                self._chronicle.write(self.kernel, self.now_s())
        except STORE_FAILURES as error:
            self.fail(error)
        finally:
            self._pumping = False

    def _is_here(self, node_id: str) -> bool:
        return self.kernel.cluster.nodes[node_id].phase in (NodePhase.READY, NodePhase.NOTICED)

    def _handle(self, event: Event) -> list[Action]:
        if _is_old(event, self.kernel):
            return []
        if isinstance(event, news.RentRefused) and self._is_here(event.node_id):  # its agent was quicker
            event = news.NodeLost(event.at_s, event.node_id)
        if event.at_s < (earliest_s := max(self.kernel.now_s, self._bill.settled_s)):
            event = _heard_at(event, earliest_s)
        before: list[Action] = []
        if isinstance(event, news.NodeLost | news.NodeSilent):  # before the kernel forgets its tenants
            for first in self._departures.before_loss(event):
                before += self._handle(replace(first, at_s=event.at_s))
            event = replace(event, at_s=max(event.at_s, self.kernel.now_s))
        try:
            jobs = self._bill.before(event)
            actions = self.kernel.handle(event)
            self._bill.after(event, jobs, actions)
        except SubletError as error:  # news that cannot be: the kernel is as it was before it, and so is the log
            log.exception("the kernel refused %s", event)
            self._chronicle.note(HistoryRow(kind="Refused", text=str(error)))
            return before
        self._store.append(event.at_s, line_from(event, actions))
        self._journal.follow(event, actions)
        if isinstance(event, news.NodeNoticed):
            self._departures.after_notice(event)
        try:
            self._chronicle.tell(event, actions, self.kernel)
        except Exception as error:  # what was ordered is done, whether or not it can be told
            log.exception("%s cannot be told", type(event).__name__)
            self._alarms.sound(
                AlarmKind.HISTORY, f"{type(event).__name__} is not in the history: {type(error).__name__}"
            )
        if isinstance(event, news.PlanMade):
            self._outlet.take_plan(event, refusal_among(actions))
        return [*before, *actions]


def _heard_at(event: Event, at_s: float) -> Event:
    """Now, since later things were heard before it; a price counts from when it began all the same."""
    if isinstance(event, news.PriceChanged):
        return news.PriceHeardLate(at_s, event.offer_id, event.price, since_s=event.at_s)
    return replace(event, at_s=at_s)


def _earlier(event: Event, by_s: float) -> Event:
    """The same, with all its times so much before."""
    times = {name: told_s for name in TIMES if (told_s := getattr(event, name, None)) is not None}
    return replace(event, **{name: told_s - by_s for name, told_s in times.items()})


def _is_old(event: Event, kernel: Kernel) -> bool:
    """News of what is gone already: the worlds of the provider and of the agents are not in step with ours."""
    if isinstance(event, news.NodeNews):
        node = kernel.cluster.nodes.get(event.node_id)
        if node is None:
            return True
        if isinstance(event, news.NodeSilent):
            return node.phase is not NodePhase.READY
        return isinstance(event, news.NodeReleased) and node.phase is not NodePhase.RELEASING
    if isinstance(event, news.JobFinished | news.JobFailed | news.JobCancelled | news.JobChanged):
        job_id = event.job.id if isinstance(event, news.JobChanged) else event.job_id
        return job_id not in kernel.jobs
    if isinstance(event, news.PurseSet) and event.holder.level is Level.FILE:
        return event.holder.name not in kernel.jobs
    return False
