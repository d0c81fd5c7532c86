"""Asking the policy aside: in a thread of its own, for so long and no longer, and again when it failed.

A policy is somebody's program: it may raise anything, run out of memory, answer nonsense or never answer. The
controller goes on with the plan that stands, says so, and asks again after a pause, with what is known by then. A
thread cannot be ended; the answer of one that took too long is not wanted any more, and while it still runs only one
other may be begun.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from sublet.domain.events import PlanMade
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.domain.quantity import positive
from sublet.errors import PolicyFailed
from sublet.kernel.journal import event_from_json, line_from

__all__ = ["LIMIT_S", "Made", "Planner"]

LIMIT_S = 60.0  # wall: far beyond what any policy of ours takes for a thousand jobs
FIRST_PAUSE_S = 1.0  # wall, after a failure; doubled after each
LONGEST_PAUSE_S = 60.0
MOST_THREADS = 2  # that think at once: one that was given up, and one more
LOOK_S = 0.25  # wall, between two looks whether one of too many has ended

Alarm = Callable[[str, str], None]


class Made(NamedTuple):
    """A plan, and what it was made from."""

    plan: Plan
    snapshot: Snapshot
    seconds: float  # wall, that the policy thought


class Planner:
    """`policy` may fail; `alarm` (kind, text) is told whenever it does."""

    def __init__(self, policy: Policy, alarm: Alarm, *, limit_s: float = LIMIT_S) -> None:
        positive("limit_s", limit_s)
        self.policy, self.limit_s, self._alarm = policy, limit_s, alarm
        self.pause_s = FIRST_PAUSE_S  # the first one; doubled after each failure in a row
        self._asked_wall_s: float | None = None  # since when somebody waits for a plan
        self._why = ""  # the last attempt failed
        self._thinking: set[threading.Thread] = set()

    @property
    def overdue(self) -> str:
        """Why there is no plan though there should be one; "" where all is well."""
        if self._asked_wall_s is None:
            return ""
        waited_s = time.monotonic() - self._asked_wall_s
        if not self._why and waited_s <= self.limit_s:
            return ""
        return f"no plan since {waited_s:.0f} s: {self._why or 'the policy still thinks'}; the one before it stands"

    async def plan(self, look: Callable[[], Snapshot]) -> Made:
        """Until there is one; `look` is asked before each attempt."""
        self._asked_wall_s, pause_s = time.monotonic(), self.pause_s
        try:
            while True:
                snapshot, began_s = look(), time.monotonic()
                try:
                    plan = await self.ask(snapshot)
                except PolicyFailed as error:
                    self._why = error.why
                    self._alarm("policy", f"{error}; asked again in {pause_s:g} s")
                else:
                    return Made(plan, snapshot, time.monotonic() - began_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._asked_wall_s, self._why = None, ""

    async def ask(self, snapshot: Snapshot) -> Plan:
        """One attempt; PolicyFailed whatever went wrong."""
        loop, end_s = asyncio.get_running_loop(), time.monotonic() + self.limit_s
        while len(self._thinking) >= MOST_THREADS:
            if time.monotonic() > end_s:
                raise PolicyFailed(f"{MOST_THREADS} earlier questions are still not answered")
            await asyncio.sleep(min(LOOK_S, self.limit_s / 4))
        answer: asyncio.Future[Plan] = loop.create_future()

        def told(plan: Plan | None, error: BaseException | None) -> None:
            self._thinking.discard(thread)
            if answer.done():
                return  # nobody waits for it any more
            if plan is not None:
                answer.set_result(plan)
            else:
                answer.set_exception(PolicyFailed(f"it raised {type(error).__name__}", str(error)))

        def think() -> None:
            plan, error = None, None
            try:
                plan = _checked(self.policy.decide(snapshot), snapshot)
            except BaseException as caught:  # noqa: BLE001 - anything: it ends here, in its own thread
                error = caught
            try:
                loop.call_soon_threadsafe(told, plan, error)
            except RuntimeError:  # the loop has ended meanwhile
                return

        thread = threading.Thread(target=think, name="policy", daemon=True)  # it must not hold up the end of us all
        self._thinking.add(thread)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # no memory for one more thread
            self._thinking.discard(thread)
            raise PolicyFailed(f"no thread could be begun for it ({type(error).__name__})") from error
        try:
            return await asyncio.wait_for(answer, self.limit_s)
        except TimeoutError:
            raise PolicyFailed(f"it has not answered within {self.limit_s:g} s") from None


def _checked(plan: object, snapshot: Snapshot) -> Plan:
    """As it will stand in the log: what cannot be written down, or not be read again, is no plan."""
    if not isinstance(plan, Plan):
        raise TypeError(f"{type(plan).__name__} is no Plan")
    event = PlanMade(snapshot.now_s, plan, snapshot.seen)
    event_from_json(json.loads(line_from(event, ()))["event"])
    return plan
