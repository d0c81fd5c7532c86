"""Everything that users ask of a running controller: each call goes to the part of this package that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sublet.domain import events as news
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.memory import EARLIER, JobRecord
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.controller_api import views
from sublet.runtime.controller_api.budgets import Budgets
from sublet.runtime.controller_api.directory import Directory
from sublet.runtime.controller_api.explain import explain_view
from sublet.runtime.controller_api.health import health_view, metrics_view
from sublet.runtime.controller_api.history import Curves, Prices, days, event_views
from sublet.runtime.controller_api.jobs import JobCommands, JobSources, job_view, own_budgets, reason_of
from sublet.runtime.controller_api.money import (
    budget_view,
    change_budget,
    earlier_cost_view,
    job_cost_view,
    refuse_second_purse,
    top_up_purse,
    total_cost_view,
)
from sublet.runtime.controller_api.nodes import node_views
from sublet.runtime.controller_api.protocol import Parts, Submitted
from sublet.runtime.controller_api.submission import answer_dry_run, known_job, refuse_impossible, submit_job
from sublet.runtime.controller_api.tokens import OWNER, Tokens
from sublet.runtime.controller_api.trials import Trials
from sublet.runtime.controller_host.troubles import TroubleWatch, is_anchor
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings


class ControllerApi:
    """`sublet.runtime.controller_api.protocol.Api`, for a controller."""

    def __init__(
        self, controller: Controller, settings: Settings, *, warm: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._controller, self._settings, self._warm = controller, settings, warm
        self._wall = controller.clock.wall
        self._commands = JobCommands(controller)
        self.parts = Parts(controller.sync.content)
        self.trials = Trials(controller, market=settings.market, notice_s=settings.notice_s)
        self.curves = Curves(self.record)
        self.prices = Prices(lambda: controller.kernel)
        self.tokens = Tokens(controller.store, lambda row, by: _note(controller, row, by), wall=controller.clock.wall)
        self.directory = Directory(
            controller.table, is_alive=lambda job_id: job_id in controller.kernel.jobs, take_back=self.record
        )
        self.budgets = Budgets(
            kernel=lambda: controller.kernel,
            now_s=controller.now_s,
            unix_s=self._wall.unix,
            tell=lambda event, by: _tell(controller, event, by),
            started=self.started,
            tokens=self.tokens,
            directory=self.directory,
            own=lambda: own_budgets(controller),
        )
        self._began = self._wall.monotonic()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Until `shutdown` was asked for and is done."""
        if self._warm is not None and self._controller.store.last_s() == 0.0:
            await self._warm()
            self._controller.clock.begin()
        await self._controller.start()
        folder = Path(self._settings.state_dir)
        if is_anchor(folder):
            watch = TroubleWatch(folder, self._controller.alarms, self._wall)
            self._controller.inbox.spawn(watch.watching(), "watching who keeps us")
        self._began = self._wall.monotonic()
        self._started.set()
        await self._controller.wait()

    @property
    def is_started(self) -> bool:
        """Jobs can be brought."""
        return self._started.is_set()

    async def started(self) -> None:
        """Returns when jobs can be brought."""
        await self._started.wait()

    def record(self, job_id: str) -> JobRecord:
        """The record of a job, for callers in the same process."""
        return self._commands.find(job_id)

    # ------------------------------------------------------------------ jobs come and go

    async def submit(self, spec: JobSpec, *, key: str = "", by: str = "") -> Submitted:
        """Take a job; durable when it returns."""
        await self.started()
        key = key if by in ("", OWNER) or not key else f"{by} {key}"  # two users may have called theirs alike
        if (known := known_job(self._controller, key)) is not None:
            return known
        user, team = self.tokens.owner(by)  # whatever the file says
        packed = await self._controller.sync.pack(replace(spec, user=user, team=team))
        with self._controller.inbox.asked_by(by):
            return submit_job(self._controller, packed, key)

    async def cancel(self, job_id: str, *, now: bool = False, by: str = "") -> views.JobView:
        """End it."""
        await self.started()
        with _asked(self._controller, by):
            return _view(self._controller, self._commands.cancel(job_id, now=now))

    async def pause(self, job_id: str, *, by: str = "") -> views.JobView:
        """Save it and take its workers away."""
        await self.started()
        with _asked(self._controller, by):
            return _view(self._controller, self._commands.pause(job_id))

    async def resume(
        self, job_id: str, *, start_over: bool = False, secrets: Mapping[str, str] | None = None, by: str = ""
    ) -> views.JobView:
        """Let it go on."""
        await self.started()
        with _asked(self._controller, by):
            return _view(self._controller, self._commands.resume(job_id, start_over=start_over, secrets=secrets))

    async def top_up_job(self, job_id: str, usd: float, *, by: str = "") -> views.JobView:
        """Let it spend more."""
        await self.started()
        with _asked(self._controller, by):
            return _view(self._controller, self._commands.top_up(job_id, usd))

    async def scale(self, job_id: str, *, low: int, high: int, by: str = "") -> views.JobView:
        """Other worker counts."""
        await self.started()
        with _asked(self._controller, by):
            return _view(self._controller, self._commands.scale(job_id, low=low, high=high))

    async def dry_run(self, spec: JobSpec) -> views.DryRunView:
        """The outcome if it were submitted now; nothing is kept."""
        warning = refuse_impossible(self._controller.feasibility, spec)
        notes = await self._controller.sync.look(spec)
        spec = replace(spec, notes=(*spec.notes, *notes))
        return await answer_dry_run(self._controller, spec, warning)

    # ------------------------------------------------------------------ what there is

    async def jobs(self) -> Sequence[views.JobView]:
        """All jobs, in order of submission."""
        sources = _settled_sources(self._controller)
        return [job_view(record, sources) for record in self._controller.records.values()]

    async def job(self, job_id: str) -> views.JobView:
        """One job."""
        record = self.record(job_id)
        return job_view(record, _settled_sources(self._controller, record.id))

    async def explain(self, job_id: str) -> views.ExplainView:
        """Why it has this worker count."""
        record = self.record(job_id)
        reason = reason_of(record, self._controller.kernel.jobs.get(job_id), _sources(self._controller))
        return explain_view(self._controller, record, policy=self._settings.policy, reason=reason)

    async def events(
        self, job_id: str | None = None, *, after: int = 0, limit: int = 1000, newest: bool = False
    ) -> Sequence[views.EventView]:
        """History, oldest first."""
        if job_id is not None:
            self.record(job_id)
        return event_views(self._controller.store, job_id, after=after, limit=limit, newest=newest)

    async def log_parts(self, job_id: str, *, rank: int | None = 0, worker_id: str = "") -> views.JobLog:
        """Where its output is."""
        record = self.record(job_id)
        parts = self._controller.logs.of(job_id).parts(rank=rank, worker_id=worker_id)
        return views.JobLog(parts=parts, hide=tuple(record.spec.secrets.values()))

    async def nodes(self) -> Sequence[views.NodeView]:
        """Every node, and those that went lately."""
        controller = self._controller
        nodes = controller.context.nodes
        return node_views(controller.kernel, controller.now_s(), nodes.doomed_s, nodes.silent)

    # ------------------------------------------------------------------ money

    async def cost(self, job_id: str | None = None) -> views.CostView:
        """The bill of one job, or of everything."""
        controller, sources = self._controller, _settled_sources(self._controller, job_id)
        records = list(controller.records.values()) if job_id is None else [self.record(job_id)]
        jobs = controller.bill.jobs
        costs = [job_cost_view(job_view(record, sources), jobs[record.id], record.tiers) for record in records]
        if job_id is not None:
            return costs[0]
        if (earlier := controller.archive.shelf.sums()).jobs:
            costs.append(earlier_cost_view(earlier, controller.bill.jobs[EARLIER]))
        ledger, bill = controller.kernel.ledger, controller.bill
        tiers = [record.tiers for record in records]
        spent_days = days(controller.store, self._wall.unix(), ledger.spent(bill.settled_s).usd)
        return total_cost_view(costs, bill, ledger.outflow(), tiers, ledger.besides(bill.settled_s), spent_days)

    async def budget(self) -> views.BudgetView:
        """The limits, and what is spent."""
        controller = self._controller
        lease_s = controller.engine.lease_s * controller.clock.speedup
        return budget_view(controller.kernel, controller.now_s(), lease_s)

    async def set_budget(
        self,
        *,
        burn_limit_usd_per_h: float | None = None,
        average_usd_per_h: float | None = None,
        purse_usd: float | None = None,
        by: str = "",
    ) -> views.BudgetView:
        """Change what is given."""
        await self.started()
        kernel = self._controller.kernel
        refuse_second_purse(kernel, purse_usd)
        budget = change_budget(
            kernel.supply.budget,
            burn_limit_usd_per_h=burn_limit_usd_per_h,
            average_usd_per_h=average_usd_per_h,
            purse_usd=purse_usd,
        )
        with _asked(self._controller, by):
            self._controller.tell(news.BudgetChanged(self._controller.now_s(), budget))
        return await self.budget()

    async def top_up(self, usd: float, *, by: str = "") -> views.BudgetView:
        """Put more into the budget."""
        await self.started()  # before that, the purse is not the one that was left
        return await self.set_budget(purse_usd=top_up_purse(self._controller.kernel.supply.budget, usd), by=by)

    # ------------------------------------------------------------------ the controller itself

    async def health(self) -> views.HealthView:
        """Alive, and ready or not."""
        wall_up_s = self._wall.monotonic() - self._began
        return health_view(self._controller, self._settings, started=self._started.is_set(), wall_up_s=wall_up_s)

    async def metrics(self) -> views.MetricsView:
        """Counters for Prometheus."""
        controller = self._controller
        price_age_s = controller.provider.price_age_s()
        return metrics_view(controller.gauges, controller.records.values(), price_age_s=price_age_s)

    async def shutdown(self, *, end_jobs: bool = False, by: str = "") -> None:
        """Save and stop every job, give everything back, then let `run` return."""
        if by and not self._controller.stopping:
            text = f"the controller is to end, and {'so are all jobs' if end_jobs else 'jobs go on at its next start'}"
            _note(self._controller, HistoryRow(kind="Shutdown", text=text), by)
        await self._controller.stop(end_jobs=end_jobs)


def _tell(controller: Controller, event: news.Event, by: str) -> None:
    with _asked(controller, by):
        controller.tell(event)


def _note(controller: Controller, row: HistoryRow, by: str) -> None:
    with _asked(controller, by):
        controller.note(row)


@contextmanager
def _asked(controller: Controller, by: str) -> Iterator[None]:
    """Marks what follows as a user's wish, on disk when it is answered."""
    with controller.writing(), controller.inbox.asked_by(by):
        yield


def _settled_sources(controller: Controller, only: str | None = None) -> JobSources:
    """With a bill that goes up to this moment; for a look at one job no other is booked."""
    if only is None:
        controller.bill.settle(controller.now_s())
    else:
        controller.bill.settle_job(only, controller.now_s())
    return _sources(controller)


def _sources(controller: Controller) -> JobSources:
    kernel, now_s = controller.kernel, controller.now_s()
    return JobSources(
        kernel=kernel,
        bill=controller.bill,
        now_s=now_s,
        speedup=controller.clock.speedup,
        plan_reasons=controller.decisions.reasons,
        wait_reason=controller.deferred.why,
        knows_size=controller.factory.sizes.knows,
    )


def _view(controller: Controller, record: JobRecord) -> views.JobView:
    return job_view(record, _sources(controller))
