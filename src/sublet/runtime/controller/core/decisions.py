"""The policy: asked in a thread of its own, with a time limit; its last plan and reasons; why a job waits.

A policy is a plug-in: it may raise anything, run out of memory, answer nonsense or never answer. The
controller goes on with the plan that stands, says so, and asks again after a pause, with what is known by then. A
thread cannot be ended; the answer of one that took too long is not wanted any more, and while it still runs only one
other may be begun. Only a plan that the kernel has taken is a decision. Of one that it refused nothing is kept but why.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import NamedTuple, Protocol

from sublet.domain import events as news
from sublet.domain.actions import RefusePlan
from sublet.domain.events import PlanMade
from sublet.domain.offer import Market
from sublet.domain.plan import Phase, Plan, Policy, Snapshot
from sublet.domain.quantity import positive
from sublet.domain.shape import Shape
from sublet.domain.weighed import Weighed, Weighing
from sublet.errors import Infeasible, InvalidValue, PolicyFailed
from sublet.kernel.journal import event_from_json, line_from
from sublet.machine.wall import WALL, Wall
from sublet.planning.options import WeighedOptions
from sublet.runtime.controller.host import DECIDE_LIMIT_S, begin_thread
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.jobs import Feasibility
from sublet.runtime.controller.memory import JobRecord, JobTable
from sublet.runtime.controller.watch import AlarmKind, Alarms, HistoryRow, rows_from_plan

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


class Planner:
    """`policy` may fail; `alarm` (kind, text) is told whenever it does. `aside` does work beside everything else."""

    def __init__(
        self,
        policy: Policy,
        alarm: Alarm,
        *,
        limit_s: float = DECIDE_LIMIT_S,
        wall: Wall = WALL,
        aside: Callable[[Callable[[], None]], None] = begin_thread,
    ) -> None:
        positive("limit_s", limit_s)
        self.policy, self.limit_s, self._alarm = policy, limit_s, alarm
        self._wall, self._aside = wall, aside
        self.pause_s = FIRST_PAUSE_S  # the first one; doubled after each failure in a row
        self._asked_wall_s: float | None = None  # since when a plan is waited for
        self._why = ""  # the last attempt failed
        self._thinking: set[object] = set()  # one for each question that is not answered
        self._trying: set[object] = set()  # the same, of users

    @property
    def asked(self) -> bool:
        """A plan is waited for, and being made."""
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
                return  # it is not waited for any more
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
    """Text of an exception; it is the policy's own, and may fail at that, too."""
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
    """Texts of jobs, in letters that can be written, and not without end."""
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
        if type(weighing) is WeighedOptions:  # our own: its rows cost, and may never be asked for
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


class Decisions:
    """Of one controller's policy."""

    def __init__(self, inbox: Inbox, planner: Planner, alarms: Alarms, wall: Wall = WALL) -> None:
        self._inbox, self._planner, self._alarms, self._wall = inbox, planner, alarms, wall
        self._making = False  # one at a time: of two, the older might come last and undo the newer
        self.plan: Plan | None = None  # the last one that was taken
        self.plan_s = 0.0
        self.reasons: dict[str, str] = {}  # by job
        self.weighed: dict[str, tuple[float, Weighing]] = {}  # by job: when its shapes were last weighed, and how
        self.refused = ""  # why the last plan was; "" = it was taken
        self._refused_what, self._refused_wall_s = "", 0.0  # the limit, without whose it is; since when none was taken

    @property
    def overdue(self) -> str:
        """Why no plan is taken though there should be one, in words for any reader; "" where all is well."""
        if self.refused and not self._planner.overdue:
            waited_s = self._wall.monotonic() - self._refused_wall_s
            return f"plans are refused since {waited_s:.0f} s, by {self._refused_what}; the one before them stands"
        return self._planner.overdue

    async def make(self) -> None:
        """Another one, from all that is known by then; a second order for one that is being made asks for the same."""
        if self._making:
            return
        self._making = True
        try:
            await asyncio.sleep(0)  # let everything of this instant be heard first
            made = await self._planner.plan(lambda: self._inbox.kernel.snapshot(frozen=True))
        finally:
            self._making = False
        self._alarms.gauges.decision_s.observe(made.seconds)
        self._inbox.tell(news.PlanMade(self._inbox.now_s(), made.plan, made.snapshot.seen))

    def take(self, event: news.PlanMade, refusal: RefusePlan | None) -> None:
        """The kernel has taken a plan, or refused it."""
        if refusal is not None:
            if not self.refused:
                self._refused_wall_s = self._wall.monotonic()
            self.refused, self._refused_what = str(refusal.error(event.at_s)), _without_names(refusal.binding)
            text = f"the policy's plan is refused, nothing of it is done: {self.refused}"
            self._alarms.sound(AlarmKind.REFUSED, text, reason=self._refused_what)
            return
        self.refused, self.plan, self.plan_s = "", event.plan, event.at_s
        self.reasons |= event.plan.reasons
        jobs = self._inbox.kernel.jobs
        self.weighed = {job_id: each for job_id, each in self.weighed.items() if job_id in jobs}
        self.weighed |= {job_id: (self.plan_s, each) for job_id, each in event.plan.weighed.items()}


def _without_names(binding: str) -> str:
    """`shapes.gpus` of `shapes[j-1].gpus`: probes are answered without a token, and say nothing of anybody's jobs."""
    return binding.partition("[")[0] + binding.rpartition("]")[2] if "[" in binding else binding


OTHERS = "what may be held is in use by others, or is kept for them by the policy"
ALONE = "no other job has anything of what may be held, and the policy gives this one nothing"


class DeferredPlans:
    """Looks after every plan at the jobs that it gave nothing; `decisions` has the policy's own reasons."""

    def __init__(self, inbox: Inbox, *, table: JobTable, feasibility: Feasibility, decisions: Decisions) -> None:
        self._inbox, self._table, self._feasibility, self._decisions = inbox, table, feasibility, decisions
        self._told: dict[str, tuple[str, str]] = {}  # job -> (which limit, in words)

    def why(self, job_id: str) -> str:
        """The reason that was told last; "" for a job that does not wait."""
        return self._told.get(job_id, ("", ""))[1]

    def explain(self) -> None:
        """After a plan. Jobs that are alike in where and how wide they may run are looked at once."""
        alike: dict[tuple[int, int, tuple[str, ...]], tuple[str, str]] = {}
        for record in self._table.live.values():
            state = self._inbox.kernel.jobs.get(record.id)
            if state is None or state.shape is not None or state.phase is not Phase.WAITING or record.paused:
                self._told.pop(record.id, None)
                continue
            kind = (record.spec.least_workers, record.spec.min_on_demand, record.pools)
            if kind not in alike:
                alike[kind] = self._limit(record)
            limit, text = alike[kind]
            if not limit:
                limit, text = self._say_of_policy(record.id)
            if limit != self._told.get(record.id, ("", ""))[0]:
                self._inbox.note(HistoryRow(kind="Waits", job_id=record.id, text=f"waits: {text}"))
            self._told[record.id] = (limit, text)

    def _say_of_policy(self, job_id: str) -> tuple[str, str]:
        """It alone is in the way of this job: by its plans, none of which is taken, or for a reason of its own."""
        if why := self._decisions.refused:
            return "refused", f"the policy's plans are refused, so nothing is begun: {why}"
        if why := self._decisions.reasons.get(job_id, ""):
            return "policy", why
        others = (state for id_, state in self._inbox.kernel.jobs.items() if id_ != job_id)
        in_use = any(state.shape is not None or state.phase is not Phase.WAITING for state in others)
        return ("policy", OTHERS) if in_use else ("policy, alone", ALONE)

    def _limit(self, record: JobRecord) -> tuple[str, str]:
        """The limit in the way of such a job, money and markets included; ("", "") if nothing is but others."""
        try:
            self._feasibility.refuse_beyond_limits(record.spec)
        except Infeasible as error:
            return error.binding, str(error).replace("\n  next:", "; next:")
        except InvalidValue as error:
            return error.field, str(error)
        supply, left = self._inbox.kernel.supply, self._inbox.kernel.supply.purse.left(self._inbox.now_s())
        if supply.purse.broke:
            return (
                "purse",
                "all that is left in the budget is reserved to end what runs; next: sublet budget top-up USD",
            )
        pools = [pool for pool in supply.pools.values() if not record.pools or pool.name in record.pools]
        if max(supply.offering.most_gpus(pool) for pool in pools) < record.spec.least_workers:
            names = " and ".join(pool.name for pool in pools)
            return "market", f"the market has too few nodes of {names} now; they are asked for again and again"
        if max(supply.offering.most_of(pool, Market.ON_DEMAND) for pool in pools) < record.spec.min_on_demand:
            names = " and ".join(pool.name for pool in pools)
            return "on demand", f"there are too few nodes of {names} on demand now; they are asked for again and again"
        offers = [supply.offers[offer_id] for pool in pools for offer_id in pool.offer_ids]
        if left is not None and left < min(offer.reserve for offer in offers):
            return "reserve", "what is left in the budget is reserved for the nodes of others"
        return "", ""
