"""Carries out the kernel's orders: each goes to the part that can do it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import assert_never

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.machine.wall import WALL, Wall
from sublet.runtime.controller.decisions import Decisions
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.leases import Leases
from sublet.runtime.controller.preparing import Preparing
from sublet.runtime.controller.router import Router
from sublet.runtime.controller.timers import Timers
from sublet.runtime.controller.waits import Waits

__all__ = ["Orders"]

log = logging.getLogger("sublet.controller")


class Orders:
    """Of one controller."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        router: Router,
        preparing: Preparing,
        leases: Leases,
        timers: Timers,
        decisions: Decisions,
        waits: Waits,
        wall: Wall = WALL,
    ) -> None:
        self._inbox, self._router, self._leases, self._timers = inbox, router, leases, timers
        self._preparing, self._decisions, self._waits, self._wall = preparing, decisions, waits, wall
        self.holding = False  # orders to jobs wait until it is known who still runs: recovery then gives them

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
                self._timers.set(action)
            case order.StartJob() | order.ResizeJob() | order.StopJob():
                if not self.holding:
                    self._router.carry_out(action)
            case order.PrepareJob():
                self._preparing.expect(action.job_id, action.shape.grid)
            case order.TellUser():
                log.info("%s", action.text)
            case order.RefusePlan():
                log.error("%s", action.error(self._inbox.kernel.now_s))
            case _:
                assert_never(action)

    async def _decide(self) -> None:
        await self._decisions.make()
        self._waits.look()

    def warn(self, event: news.NodeNoticed | news.NodeSilent | news.NodeLost) -> Sequence[Event]:
        """A node goes: those who have workers there must know. What the kernel is to hear before a loss."""
        try:
            if isinstance(event, news.NodeLost):
                return self._router.node_lost(event.node_id, self._wall.monotonic(), event.why)
            if isinstance(event, news.NodeSilent):
                return self._router.node_silent(event.node_id, self._wall.monotonic())
            self._router.node_noticed(event)
            self._preparing.notice(event.node_id)
        except Exception:  # what the kernel orders is done all the same
            log.exception("%s of %s went wrong", type(event).__name__, event.node_id)
        return ()

    def hear_plan(self, event: news.PlanMade, refusal: order.RefusePlan | None) -> None:
        """The kernel has taken a plan, or refused it."""
        self._decisions.hear(event, refusal)

    def drain(self) -> None:
        """Let groups say what they have to say, to agents and to the kernel."""
        self._router.drain()
