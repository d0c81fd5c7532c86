"""The history that people read: events and orders as sentences, repeats counted, rows with what was held and spent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.budget import Budget, Level, amount_text
from sublet.domain.events import Event
from sublet.domain.job import Job
from sublet.domain.plan import Plan
from sublet.domain.quantity import counted
from sublet.domain.shape import Placement
from sublet.domain.units import MINUTE_S
from sublet.kernel.kernel import Kernel
from sublet.machine.wall import WALL, Wall, iso_utc
from sublet.runtime.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One line of history; the price that a decision rested on is in its text."""

    kind: str
    text: str
    job_id: str = ""
    node_id: str = ""
    workers: int | None = None
    by: str = ""  # the user whose wish it was; "" = none


class SupplyNews:
    """Which changes of a supply are worth a line: a market moves all day, and mostly far above what we hold.

    Told is when it becomes what holds us back (no more is to be had than we hold), and when it ceases to.
    """

    def __init__(self) -> None:
        self._short: dict[str, bool] = {}  # by offer, as it was told last

    def matter(self, event: news.AvailabilityChanged, kernel: Kernel) -> bool:
        """Whether to tell this one."""
        held = sum(node.offer.id == event.offer_id for node in kernel.cluster.nodes.values())
        short = event.nodes is not None and event.nodes <= held
        before, self._short[event.offer_id] = self._short.get(event.offer_id), short
        return short != before


def width(low: int, high: int) -> str:
    """`1 worker`, `2 to 8 workers`."""
    return counted(high, "worker") if low == high else f"{low} to {counted(high, 'worker')}"


class Progress:
    """How far a job is, in the words that are known to be true: a script without a session does not say."""

    def __init__(self, tells: Callable[[str], bool], kept: Callable[[str], str]) -> None:
        self._tells, self._kept = tells, kept
        self._workers: dict[str, int | None] = {}  # by job, as they were told last

    def started(self, event: news.JobStarted, workers: int | None) -> str:
        """It trains."""
        self._workers[event.job_id] = workers
        return f"trains{self._done(event)}"

    def resized(self, event: news.JobResized, workers: int | None) -> str:
        """It trains on, or was started again as it was."""
        before = self._workers.get(event.job_id, workers)
        self._workers[event.job_id] = workers
        return f"trains {'again' if before == workers else 'in its new size'}{self._done(event)}"

    def stopped(self, event: news.JobStopped) -> str:
        """It has left."""
        if self._tells(event.job_id) and (kept := self._kept(event.job_id)):
            return f"stopped, and no worker was left to save; kept is {kept}"
        return f"stopped and saved{self._done(event)}" if self._tells(event.job_id) else "stopped"

    def to_stop(self, job_id: str) -> str:
        """It is to leave."""
        return "save and leave" if self._tells(job_id) else "leave"

    def _done(self, event: news.JobStarted | news.JobResized | news.JobStopped) -> str:
        return f", {event.done:.1%} done" if self._tells(event.job_id) else ""


def row_from_event(event: Event, kernel: Kernel, progress: Progress) -> HistoryRow | None:
    """One event; None for noise."""
    kind = type(event).__name__
    match event:
        case news.JobSubmitted(job=job):
            text = f"submitted: {width(job.min_gpus, job.max_gpus)}{_whose(job)}"
            return HistoryRow(kind=kind, job_id=job.id, text=text)
        case news.JobCancelled(job_id=job_id):
            return HistoryRow(kind=kind, job_id=job_id, text="cancelled", workers=0)
        case news.JobStarted(job_id=job_id):
            state = kernel.jobs.get(job_id)
            workers = state.gpus if state is not None else None
            return HistoryRow(kind=kind, job_id=job_id, text=progress.started(event, workers), workers=workers)
        case news.JobResized(job_id=job_id):
            state = kernel.jobs.get(job_id)
            workers = state.gpus if state is not None else None
            return HistoryRow(kind=kind, job_id=job_id, text=progress.resized(event, workers), workers=workers)
        case news.JobStopped(job_id=job_id):
            return HistoryRow(kind=kind, job_id=job_id, text=progress.stopped(event), workers=0)
        case news.JobFinished(job_id=job_id):
            return HistoryRow(kind=kind, job_id=job_id, text="finished", workers=0)
        case news.JobFailed(job_id=job_id, why=why):
            return HistoryRow(kind=kind, job_id=job_id, text=f"failed: {gist_of(why)}", workers=0)
        case news.NodeReady(node_id=node_id) | news.NodeThreatened(node_id=node_id):
            text = "is ready" if isinstance(event, news.NodeReady) else "is more likely to be taken, says the cloud"
            return HistoryRow(kind=kind, node_id=node_id, text=text)
        case news.NodeNoticed(node_id=node_id, at_s=at_s, lost_s=lost_s):
            text = f"will be taken back in {lost_s - at_s:.0f} s" if lost_s > at_s else "takes no more work"
            return HistoryRow(kind=kind, node_id=node_id, text=text)
        case news.NodeSlow(node_id=node_id, why=why) | news.NodeSilent(node_id=node_id, why=why):
            cut_off = f"{why}: its jobs go on without it; it is still rented"
            text = f"is replaced: {why}" if isinstance(event, news.NodeSlow) else cut_off
            return HistoryRow(kind=kind, node_id=node_id, text=text)
        case news.NodeLost(node_id=node_id, why=why):
            text = f"was lost, not taken by the cloud: {why}" if why else "was taken back"
            return HistoryRow(kind=kind, node_id=node_id, text=text)
        case news.NodeReleased(node_id=node_id):
            return HistoryRow(kind=kind, node_id=node_id, text="was given back; its bill has ended")
        case news.RentRefused(node_id=node_id, why=why):
            return HistoryRow(kind=kind, node_id=node_id, text=f"could not be rented: {why}")
        case news.NodesFound(highest=highest):
            text = f"nodes up to n{highest} were rented, and the log ends before that: it is older than the world"
            return HistoryRow(kind="Alarm", text=text)
        case news.PriceChanged() | news.PriceDoubted():
            return HistoryRow(kind=kind, text=_price(event))
        case news.AvailabilityChanged(offer_id=offer_id, nodes=nodes):
            supply = "as many nodes as we ask for" if nodes is None else f"at most {counted(nodes, 'node')}"
            return HistoryRow(kind=kind, text=f"{offer_id} has {supply} now")
        case news.OffersChanged(offers=offers, limits=limits):
            most = {limit.max_nodes for limit in limits.values()}
            within = f", at most {next(iter(most))} nodes of each" if len(most) == 1 and None not in most else ""
            return HistoryRow(kind=kind, text=f"on offer: {', '.join(offer.id for offer in offers)}{within}")
        case news.BudgetChanged() | news.PurseSet():
            came = isinstance(event, news.PurseSet) and event.holder.level is Level.FILE  # with its job
            return None if came else HistoryRow(kind=kind, text=_money(event))
        case news.JobChanged() | news.ProgressReported() | news.TimerFired() | news.PlanMade():
            return None


def _whose(job: Job) -> str:
    team = f" of team {job.team}" if job.team else ""
    return f", for {job.user}{team}" if job.user else ""


def _money(event: news.BudgetChanged | news.PurseSet) -> str:
    if isinstance(event, news.BudgetChanged):
        return f"the budget is {_limits(event.budget)}"
    limit = "without a limit of its own" if event.amount is None else amount_text(event.amount, event.period)
    return f"{event.holder} may spend {limit}"


def row_from_order(action: Action, kernel: Kernel, progress: Progress) -> HistoryRow | None:
    """One order; None for noise."""
    kind = type(action).__name__
    match action:
        case order.RentNode(node_id=node_id, offer_id=offer_id):
            price = kernel.ledger.price(offer_id).usd_per_h
            return HistoryRow(kind=kind, node_id=node_id, text=f"rent one of {offer_id} at USD {price:.4f}/h")
        case order.ReleaseNode(node_id=node_id):
            return HistoryRow(kind=kind, node_id=node_id, text="give back")
        case order.StartJob(job_id=job_id, placement=placement):
            text = f"start on {_where(placement)}"
            return HistoryRow(kind=kind, job_id=job_id, text=text, workers=_count(placement))
        case order.ResizeJob(job_id=job_id, placement=placement):
            text = f"move to {_where(placement)}"
            return HistoryRow(kind=kind, job_id=job_id, text=text, workers=_count(placement))
        case order.StopJob(job_id=job_id, resumable=resumable):
            return HistoryRow(kind=kind, job_id=job_id, text=progress.to_stop(job_id) if resumable else "end")
        case order.TellUser(text=text, job_id=job_id):
            return HistoryRow(kind=kind, job_id=job_id, text=text)
        case order.RefusePlan():
            return HistoryRow(kind="Refused", text=str(action.error(kernel.now_s)))
        case order.PrepareJob(job_id=job_id, shape=shape):
            return HistoryRow(kind=kind, job_id=job_id, text=f"prepare for {shape}")
        case order.MakePlan() | order.SetTimer():
            return None


def refusal_among(actions: Iterable[Action]) -> order.RefusePlan | None:
    """Why a plan is not carried out; None = it is."""
    return next((action for action in actions if isinstance(action, order.RefusePlan)), None)


def rows_from_plan(plan: Plan) -> list[HistoryRow]:
    """The reason of every change that a plan makes, with the prices behind it."""
    return [
        HistoryRow(
            kind="Plan",
            job_id=job_id,
            text=f"{'wait' if shape is None else shape}: {plan.reasons.get(job_id, 'as the policy has it')}"
            + _at_price(plan, job_id),
        )
        for job_id, shape in plan.shapes.items()
    ]


def _at_price(plan: Plan, job_id: str) -> str:
    """Worth of an hour of this job, where that was weighed against rent."""
    value = plan.weighed[job_id].hour_usd if job_id in plan.weighed else None
    return "" if value is None else f" (an hour of its time is worth USD {value:.2f})"


def _limits(budget: Budget) -> str:
    limits = [
        "" if budget.burn is None else f"at most USD {budget.burn.usd_per_h:.2f}/h",
        "" if budget.average is None else f"USD {budget.average.usd_per_h:.2f}/h in the long run",
        "" if budget.purse is None else f"USD {budget.purse.usd:.2f} in all",
    ]
    return ", ".join(filter(None, limits)) or "without a limit"


def _price(event: news.PriceChanged | news.PriceDoubted) -> str:
    rent = f"USD {event.price.usd_per_h:.4f}/h"
    if isinstance(event, news.PriceDoubted):
        return f"{event.offer_id} may cost {rent} now: that is charged, and not believed yet"
    return f"{event.offer_id} costs {rent} now"


def _count(placement: Placement) -> int:
    return sum(gpus for _, gpus in placement)


def _where(placement: Placement) -> str:
    workers = _count(placement)
    nodes = ", ".join(node_id for node_id, _ in placement)
    return f"{workers} worker{'s' * (workers != 1)} ({nodes})"


def gist_of(text: str) -> str:
    """Gist of a failure in one line: the last of a traceback says most; one with the next step is only half."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[-1].startswith("next:"):
        return f"{lines[-2]}; {lines[-1]}"
    return lines[-1] if lines else "no reason given"


MOST_ROWS = 20  # of one kind about one subject, in a minute on the wall


@dataclass(slots=True)
class _Minute:
    ends_s: float
    told: int = 0
    first: HistoryRow | None = None  # of those that were not told
    besides: int = 0


class Repeats:
    """Rows of a history, by kind and subject. Times are those of the machine's monotonic clock."""

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, str, str], _Minute] = {}

    def admits(self, row: HistoryRow, now_s: float) -> bool:
        """Whether it is told; if not, it is counted."""
        minute = self._minutes.setdefault((row.kind, row.job_id, row.node_id), _Minute(now_s + MINUTE_S))
        if minute.told < MOST_ROWS:
            minute.told += 1
            return True
        minute.besides, minute.first = minute.besides + 1, minute.first or row
        return False

    def is_due(self, now_s: float) -> bool:
        """Something was counted, and is to be told."""
        return any(minute.first is not None and minute.ends_s <= now_s for minute in self._minutes.values())

    def over(self, now_s: float) -> list[HistoryRow]:
        """Rows for repeats in minutes that are over, one for each kind and subject. Cost: O(subjects told of)."""
        ended = [key for key, minute in self._minutes.items() if minute.ends_s <= now_s]
        told = []
        for key in ended:
            minute = self._minutes.pop(key)
            if (first := minute.first) is not None:
                text = f"{counted(minute.besides, 'more row')} like this within a minute: {first.text}"
                told.append(replace(first, text=text))
        return told


class Chronicle:
    """`has_session(job_id)`: does the job say itself how far it is? `kept(job_id)`: what is left where no worker saved.

    `grid(job_id)`: how its workers sit, "" where its model is not cut.
    """

    def __init__(
        self,
        store: Store,
        has_session: Callable[[str], bool],
        kept: Callable[[str], str],
        grid: Callable[[str], str] = lambda _: "",
        *,
        wall: Wall = WALL,
    ) -> None:
        self._store, self._grid, self._wall = store, grid, wall
        self._supply_news, self._progress = SupplyNews(), Progress(has_session, kept)
        self._rows: list[HistoryRow] = []  # not written yet
        self._repeats = Repeats()
        self.by = ""  # the user whose wish is told now; "" = none

    @property
    def waits(self) -> bool:
        """Something is not written yet."""
        return bool(self._rows) or self._repeats.is_due(self._wall.monotonic())

    def note(self, row: HistoryRow) -> None:
        """One more; what a peer says again and again is counted, and what a user has wished is told each time."""
        now_s = self._wall.monotonic()
        self._rows += self._repeats.over(now_s)
        if self.by or self._repeats.admits(row, now_s):
            self._rows.append(self._signed(row))

    def tell(self, event: Event, actions: Sequence[Action], kernel: Kernel) -> None:
        """Rows of an event and its orders; nothing that is done depends on it."""
        matters = not isinstance(event, news.AvailabilityChanged) or self._supply_news.matter(event, kernel)
        rows: list[HistoryRow] = []
        if isinstance(event, news.PlanMade) and refusal_among(actions) is None:  # else it decides nothing
            rows += rows_from_plan(event.plan)
        happened = row_from_event(event, kernel, self._progress)
        for row in (happened, *(row_from_order(action, kernel, self._progress) for action in actions)):
            if row is not None and (matters or row.kind != "AvailabilityChanged"):
                rows.append(row)
        self._rows += [self._signed(row) for row in rows]

    def _signed(self, row: HistoryRow) -> HistoryRow:
        return replace(row, by=self.by) if self.by else row

    def write(self, kernel: Kernel, now_s: float) -> None:
        """All that waits."""
        self._rows += self._repeats.over(self._wall.monotonic())
        if not self._rows:
            return
        at = iso_utc(self._wall)
        ready = sum(kernel.cluster.held.values())
        burn, spent = kernel.ledger.burn().usd_per_h, kernel.ledger.spent(now_s).usd
        rows = []
        for row in self._rows:
            workers = row.workers
            if workers is None and row.job_id in kernel.jobs:
                workers = kernel.jobs[row.job_id].gpus
            facts: dict[str, float | int | str | None] = {
                "workers": workers,
                "nodes_held": ready,
                "usd_per_h": burn,
                "usd_total": spent,
            }
            if row.by:
                facts["by"] = row.by
            if grid := self._grid(row.job_id):
                facts["grid"] = grid
            text = row.text.encode(errors="replace").decode()  # half a character is no text to the store
            rows.append((now_s, at, row.kind, row.job_id, row.node_id, text, json.dumps(facts)))
        self._rows.clear()
        with self._store.transaction():
            self._store.add_history(rows)
