"""The kernel's timers, on the wall clock: each fires once, and may be set anew."""

from __future__ import annotations

import asyncio

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.timers import Timer
from sublet.runtime.clock import Clock
from sublet.runtime.controller.inbox import Inbox

__all__ = ["Timers"]


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
