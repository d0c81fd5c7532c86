"""Asking the policy aside: in a thread of its own, for so long and no longer, and again when it failed.

A policy is somebody's program: it may raise anything, run out of memory, answer nonsense or never answer. The
controller goes on with the plan that stands, says so, and asks again after a pause, with what is known by then. A
thread cannot be ended; the answer of one that took too long is not wanted any more, and while it still runs only one
other may be begun.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import NamedTuple, Protocol

from sublet.domain.events import PlanMade
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.domain.quantity import positive
from sublet.domain.shape import Shape
from sublet.domain.weighed import Weighed, Weighing
from sublet.errors import PolicyFailed
from sublet.kernel.journal import event_from_json, line_from
from sublet.machine.wall import WALL, Wall
from sublet.planning.weighing import WeighedOptions
from sublet.runtime.controller.alarms import AlarmKind
from sublet.runtime.controller.history import rows_from_plan

__all__ = ["LIMIT_S", "Made", "Planner", "begin_thread"]

LIMIT_S = 60.0  # wall: far beyond what any policy of ours takes for a thousand jobs
FIRST_PAUSE_S = 1.0  # wall, after a failure; doubled after each
LONGEST_PAUSE_S = 60.0
MOST_THREADS = 2  # that think at once: one that was given up, and one more
LONGEST_TEXT = 2_000  # characters of a reason or a warning: they are logged, kept and shown
LONGEST_NAME = 500  # characters: no job, pool or offer has a longer one
LOOK_S = 0.25  # wall, between two looks whether one of too many has ended


class Alarm(Protocol):
    """As `Alarms.sound`."""

    def __call__(self, kind: AlarmKind, text: str, *, reason: str = "") -> None:
        """Something is wrong that people must know of, for this reason."""


class Made(NamedTuple):
    """A plan, and what it was made from."""

    plan: Plan
    snapshot: Snapshot
    seconds: float  # wall, that the policy thought


def begin_thread(work: Callable[[], None]) -> None:
    """Do it beside everything else."""
    threading.Thread(target=work, name="policy", daemon=True).start()  # it must not hold up the end of us all


class Planner:
    """`policy` may fail; `alarm` (kind, text) is told whenever it does. `aside` does work beside everything else."""

    def __init__(
        self,
        policy: Policy,
        alarm: Alarm,
        *,
        limit_s: float = LIMIT_S,
        wall: Wall = WALL,
        aside: Callable[[Callable[[], None]], None] = begin_thread,
    ) -> None:
        positive("limit_s", limit_s)
        self.policy, self.limit_s, self._alarm = policy, limit_s, alarm
        self._wall, self._aside = wall, aside
        self.pause_s = FIRST_PAUSE_S  # the first one; doubled after each failure in a row
        self._asked_wall_s: float | None = None  # since when somebody waits for a plan
        self._why = ""  # the last attempt failed
        self._thinking: set[object] = set()  # one for each question that is not answered
        self._trying: set[object] = set()  # the same, of users

    @property
    def asked(self) -> bool:
        """Somebody waits for a plan, and it is being made."""
        return self._asked_wall_s is not None

    @property
    def overdue(self) -> str:
        """Why there is no plan though there should be one; "" where all is well."""
        if self._asked_wall_s is None:
            return ""
        waited_s = self._wall.monotonic() - self._asked_wall_s
        if not self._why and waited_s <= self.limit_s:
            return ""
        return f"no plan since {waited_s:.0f} s: {self._why or 'the policy still thinks'}; the one before it stands"

    async def plan(self, look: Callable[[], Snapshot]) -> Made:
        """Until there is one; `look` is asked before each attempt."""
        self._asked_wall_s, pause_s = self._wall.monotonic(), self.pause_s
        try:
            while True:
                snapshot, began_s = look(), self._wall.monotonic()
                try:
                    plan = await self.ask(snapshot)
                except PolicyFailed as error:
                    self._why = error.why
                    self._alarm(AlarmKind.POLICY, f"{error}; asked again in {pause_s:g} s", reason=error.why)
                else:
                    return Made(plan, snapshot, self._wall.monotonic() - began_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._asked_wall_s, self._why = None, ""

    async def ask(self, snapshot: Snapshot, policy: Policy | None = None, *, trial: bool = False) -> Plan:
        """One attempt, of another policy if it is given; PolicyFailed whatever went wrong.

        A `trial` is a user's question: they wait for one another, and no plan that is needed waits for them.
        """
        asked = policy or self.policy
        thinking, most = (self._trying, 1) if trial else (self._thinking, MOST_THREADS)
        loop, end_s = asyncio.get_running_loop(), self._wall.monotonic() + self.limit_s
        while len(thinking) >= most:
            if self._wall.monotonic() > end_s:
                raise PolicyFailed(f"{most} earlier questions are still not answered")
            await asyncio.sleep(min(LOOK_S, self.limit_s / 4))
        answer: asyncio.Future[Plan] = loop.create_future()

        def told(plan: Plan | None, error: BaseException | None) -> None:
            thinking.discard(question)
            if answer.done():
                return  # nobody waits for it any more
            if plan is not None:
                answer.set_result(plan)
            else:
                answer.set_exception(PolicyFailed(f"it raised {type(error).__name__}", _said(error)))

        def think() -> None:
            plan, error = None, None
            try:
                plan = _checked(asked.decide(snapshot), snapshot)
            except BaseException as caught:  # noqa: BLE001 - anything: it ends here, in its own thread
                error = caught
            try:
                loop.call_soon_threadsafe(told, plan, error)
            except RuntimeError:  # the loop has ended meanwhile
                return

        question = object()
        thinking.add(question)
        try:
            self._aside(think)
        except (RuntimeError, MemoryError) as error:  # no memory for one more thread
            thinking.discard(question)
            raise PolicyFailed(f"no thread could be begun for it ({type(error).__name__})") from error
        try:
            return await asyncio.wait_for(answer, self.limit_s)
        except TimeoutError:
            raise PolicyFailed(f"it has not answered within {self.limit_s:g} s") from None


def _said(error: BaseException | None) -> str:
    """What an exception says of itself; it is the policy's own, and may fail at that, too."""
    try:
        return str(error)
    except BaseException as worse:  # noqa: BLE001 - as in think
        return f"and {type(worse).__name__} when asked what that means"


def _checked(plan: object, snapshot: Snapshot) -> Plan:
    """As the log will have it: what cannot be written down, not be read again or not be told to people is no plan."""
    if not isinstance(plan, Plan):
        raise TypeError(f"{type(plan).__name__} is no Plan")
    event = event_from_json(json.loads(line_from(PlanMade(snapshot.now_s, plan, snapshot.seen), ()))["event"])
    assert isinstance(event, PlanMade)  # noqa: S101 - as it was written
    reasons, warnings = _cut(event.plan.reasons), _cut(event.plan.warnings)
    for name in (*event.plan.shapes, *(shape.pool for shape in event.plan.shapes.values() if shape), *event.plan.hold):
        if len(name) > LONGEST_NAME:
            raise ValueError(f"a name of {len(name):,} characters")
    for number in (event.plan.value_of_time_usd_per_h or 0.0, *event.plan.congestion_usd_per_gpu_h.values()):
        if math.isnan(number):
            raise ValueError("a price that is no number")
    read = replace(event.plan, reasons=reasons, warnings=warnings, weighed=_weighed(plan.weighed, snapshot))
    rows_from_plan(read)
    return read


def _cut(texts: Mapping[str, str]) -> dict[str, str]:
    """What is said of each job, in letters that can be written, and not without end."""
    for job_id, text in texts.items():
        if len(job_id) > LONGEST_NAME:
            raise ValueError(f"a name of {len(job_id):,} characters")
        text.encode()
    return {
        job_id: text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."
        for job_id, text in texts.items()
    }


def _weighed(weighed: object, snapshot: Snapshot) -> dict[str, Weighing]:
    """It is not logged, but `explain` will ask it."""
    if not isinstance(weighed, Mapping):
        raise TypeError(f"weighed is {type(weighed).__name__}, not a mapping of jobs")
    for job_id, weighing in weighed.items():
        if type(job_id) is not str:
            raise TypeError(f"weighed[{job_id!r}]: {type(job_id).__name__} is no id of a job")
        if type(weighing) is WeighedOptions:  # our own: its rows cost, and nobody may ever ask for them
            continue
        if (hour_usd := weighing.hour_usd) is not None and not _is_number(hour_usd):
            raise TypeError(f"weighed[{job_id!r}].hour_usd is {type(hour_usd).__name__}, not a finite number")
        for row in weighing.rows():
            if not isinstance(row, Weighed) or not isinstance(row.shape, Shape):
                raise TypeError(f"weighed[{job_id!r}].rows() has {type(row).__name__}, not Weighed with a Shape")
            if row.shape.pool not in snapshot.pools:
                raise ValueError(f"weighed[{job_id!r}].rows() has {row.shape}, of no pool that there is")
            for field in fields(row):
                if field.type == "float" and not _is_number(getattr(row, field.name)):
                    raise TypeError(f"weighed[{job_id!r}].rows(): {field.name} is not a finite number")
    return dict(weighed)


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)
