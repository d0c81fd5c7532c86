"""Carries out the kernel's orders: each goes to the part that can do it. Timers run on the wall clock."""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.timers import Timer
from sublet.runtime.clock import Clock
from sublet.runtime.controller.core.decisions import Decisions, DeferredPlans
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.jobs import Groups
from sublet.runtime.controller.memory import Context
from sublet.runtime.controller.nodes import Leases

__all__ = ["Orders", "Timers"]


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


log = logging.getLogger("sublet.controller")


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
