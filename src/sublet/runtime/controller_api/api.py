"""What users ask of a running controller, answered from its kernel, its bill and its records."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NotRequired, TypedDict

from sublet import __version__
from sublet.domain import events as news
from sublet.domain.budget import Budget
from sublet.domain.money import Money, Price
from sublet.domain.plan import JobState, Phase
from sublet.errors import Infeasible, InvalidValue, NoSuchJob, NotNow, OutOfBudget
from sublet.kernel.cluster import NodePhase
from sublet.runtime.controller.bill import PURPOSES, Account
from sublet.runtime.controller.blame import BACK_OFF
from sublet.runtime.controller.feasibility import refuse_beyond_limits, refuse_beyond_own_purse, refuse_late
from sublet.runtime.controller.history import HistoryRow, gist_of, width
from sublet.runtime.controller.loop import Controller
from sublet.runtime.controller.records import ASKS, DAMAGED, JobRecord, kernel_job
from sublet.runtime.controller_api import views
from sublet.runtime.controller_api.expecting import expected_of
from sublet.runtime.controller_api.explain import alternatives_of
from sublet.runtime.controller_api.remaining import Outlook, outlook_in
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.spec import JobSpec
from sublet.runtime.settings import Settings

__all__ = ["ControllerApi"]

FRESH_S = 30.0  # wall: a controller that has not compared itself with its provider for so long is not ready
GONE_SHOWN_S = 600.0  # cloud: how long a node that is gone is still listed

PHASES: dict[Phase, views.JobPhase] = {
    Phase.WAITING: "queued",
    Phase.STARTING: "starting",
    Phase.RUNNING: "running",
    Phase.RESIZING: "resizing",
    Phase.STOPPING: "stopping",
    Phase.BROKEN: "recovering",
}
HELD_BACK = {
    "user": "held back by its owner",
    "budget": "its budget is spent",
    "cancel": "saves, and is ended then",
    "preemption": "saves, and is given up then: its nodes went too often",
    DAMAGED: f"{ASKS} 'sublet resume JOB' looks again, '--start-over' begins at 0",
    BACK_OFF: "its nodes ended within seconds of its start: it waits before the next",
}
NODE_PHASES = {
    NodePhase.REQUESTED: "renting",
    NodePhase.READY: "ready",
    NodePhase.NOTICED: "noticed",
    NodePhase.RELEASING: "releasing",
}


class Submitted(TypedDict):
    """The answer to a submission."""

    job_id: str
    name: str
    expected: NotRequired[views.ExpectedView | None]  # None = the policy weighs no money
    warning: NotRequired[str]  # what nobody can know of it now, such as whether its deadline can be met


class ControllerApi:
    """`sublet.runtime.controller_api.protocol.Api`, for a controller."""

    def __init__(
        self, controller: Controller, settings: Settings, *, warm: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._controller, self._settings, self._warm = controller, settings, warm
        self._began = time.monotonic()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Until `shutdown` was asked for and is done."""
        if self._warm is not None and self._controller.store.last_s() == 0.0:
            await self._warm()
            self._controller.clock.begin()
        await self._controller.start()
        self._began = time.monotonic()
        self._started.set()
        await self._controller.wait()

    async def started(self) -> None:
        """Returns when jobs can be brought."""
        await self._started.wait()

    def record(self, job_id: str) -> JobRecord:
        """What the controller knows of a job, for whoever runs in its process."""
        return self._record(job_id)

    # ------------------------------------------------------------------ jobs come and go

    async def submit(self, spec: JobSpec, *, key: str = "") -> Submitted:
        """Take a job; durable when it returns."""
        await self.started()
        c = self._controller
        if key and (known := c.store.job_by_key(key)) is not None:
            return {"job_id": known[0], "name": c.records[known[0]].spec.name}
        if c.stopping:
            raise NotNow(spec.name, "brought to a controller that is stopping", "be submitted", hint="sublet up")
        warning = self._refuse_the_impossible(spec)
        expected = expected_of(c, spec)
        number = 1 + sum(record.spec.name == spec.name for record in c.records.values())
        record = c.add(f"{spec.name}-{number}", spec, key)
        if warning:
            c.note(HistoryRow(kind="Warning", job_id=record.id, text=warning))
        return {"job_id": record.id, "name": spec.name, "expected": expected, "warning": warning}

    def _refuse_the_impossible(self, spec: JobSpec) -> str:
        """What can never run is refused; what may not is warned of."""
        bounds.absolute("workdir", spec.cwd)
        bounds.absolute("checkpoint.uri", spec.checkpoint_dir)
        refuse_beyond_limits(self._controller, spec)
        refuse_beyond_own_purse(self._controller, spec.name, spec)
        return refuse_late(self._controller, spec)

    async def cancel(self, job_id: str, *, now: bool = False) -> views.JobView:
        """End it, with a last checkpoint unless `now`; what it had saved stays. One that failed: for good."""
        await self.started()
        record = self._record(job_id)
        self._controller.cancel(record, now=now)
        return self._view(record)

    async def pause(self, job_id: str) -> views.JobView:
        """Save it and take its workers away."""
        await self.started()
        record = self._live(job_id, "pause")
        if not record.paused:  # one that is being cancelled stays so
            self._controller.note(HistoryRow(kind="Paused", job_id=job_id, text="held back by its owner"))
            self._controller.change(record, paused="user")
        return self._view(record)

    async def resume(self, job_id: str, *, start_over: bool = False) -> views.JobView:
        """Let it go on, if its own budget lets it; with `start_over`, at step 0 if all its checkpoints are damaged."""
        await self.started()
        record = self._record(job_id)
        if record.closed:
            raise NotNow(job_id, "failed, and was ended for good by 'sublet cancel'", "resume", hint="submit it anew")
        if record.outcome in ("", "failed"):
            self._refuse_a_spent_purse(record)
        if record.outcome == "failed":
            if record.spec.secrets and not self._controller.secret_files.has(job_id):
                raise NotNow(job_id, "failed, and its secrets are deleted", "resume", hint="submit it anew")
            self._controller.note(HistoryRow(kind="Resumed", job_id=job_id, text="is tried again"))
            self._controller.revive(record)
        record = self._live(job_id, "resume")
        if record.paused == "cancel":
            raise NotNow(job_id, "being cancelled", "resume", hint="wait for its end, then submit it again")
        if record.paused:
            text = "may go on, at step 0 if it has to" if start_over else "may go on"
            self._controller.note(HistoryRow(kind="Resumed", job_id=job_id, text=text))
            self._controller.change(record, paused="", start_over=start_over)
        return self._view(record)

    async def top_up_job(self, job_id: str, usd: float) -> views.JobView:
        """Let it spend more; if it was held for want of money, it goes on."""
        await self.started()
        record = self._record(job_id)
        if record.outcome != "failed":
            record = self._live(job_id, "be given more")
        purse = record.spec.purse_usd
        if purse is None:
            raise InvalidValue("purse", None, f"set when it is submitted: job {job_id} has no limit of its own")
        more = (Money.from_usd(purse) + Money.from_usd(usd)).usd
        text = f"may spend USD {more:g} in all from now on, USD {usd:g} more"
        self._controller.note(HistoryRow(kind="Budget", job_id=job_id, text=text))
        self._settle()
        left = max(0.0, more - self._controller.bill.jobs[job_id].total.usd)  # what the planner hears of it
        self._controller.change(record, spec=replace(record.spec, purse_usd=more), left_usd=left)
        if record.paused == "budget":
            with contextlib.suppress(OutOfBudget):  # still too little: it stays where it is, and says so
                self._refuse_a_spent_purse(record)
                return await self.resume(job_id)
        return self._view(record)

    def _refuse_a_spent_purse(self, record: JobRecord) -> None:
        if record.spec.purse_usd is None:
            return
        self._settle()
        spent = self._controller.bill.jobs[record.id].total.usd
        try:
            refuse_beyond_own_purse(self._controller, record.id, record.spec, spent_usd=spent)
        except Infeasible as error:
            hint = str(error).partition("\n  next: ")[2]
            what = f"job {record.id} cannot go on, its own budget is spent"
            raise OutOfBudget(what, spent_usd=spent, limit_usd=record.spec.purse_usd, hint=hint) from None

    async def scale(self, job_id: str, *, low: int, high: int) -> views.JobView:
        """Other widths."""
        await self.started()
        record = self._live(job_id, "scale")
        sizes = tuple(size for size in record.spec.sizes if low <= size <= high)
        if record.spec.sizes and not sizes:
            allowed = f"a range with one of its sizes: {', '.join(map(str, record.spec.sizes))}"
            raise InvalidValue("workers", f"{low}..{high}", allowed)
        spec = replace(record.spec, min_workers=low, max_workers=high, sizes=sizes)
        refuse_beyond_limits(self._controller, spec)
        self._controller.note(HistoryRow(kind="Scaled", job_id=job_id, text=f"{width(low, high)} from now on"))
        self._controller.change(record, spec=spec)
        return self._view(record)

    async def dry_run(self, spec: JobSpec) -> views.DryRunView:
        """What would become of it now; nothing is kept."""
        from sublet.runtime.controller_api.dry_run import rehearse

        self._refuse_the_impossible(spec)
        return await rehearse(self._controller, spec)

    # ------------------------------------------------------------------ what there is

    async def jobs(self) -> Sequence[views.JobView]:
        """All jobs, in order of submission."""
        self._settle()
        return [self._view(record) for record in self._controller.records.values()]

    async def job(self, job_id: str) -> views.JobView:
        """One job."""
        self._settle()
        return self._view(self._record(job_id))

    async def events(
        self, job_id: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> Sequence[views.EventView]:
        """History, oldest first."""
        if job_id is not None:
            self._record(job_id)
        return [
            {
                "seq": row.seq,
                "at_s": row.at_s,
                "at": row.at,
                "kind": row.kind,
                "job_id": row.job_id,
                "node_id": row.node_id,
                "text": row.text,
                "workers": row.facts.get("workers"),
                "nodes_held": row.facts.get("nodes_held", 0),
                "usd_per_h": row.facts.get("usd_per_h", 0.0),
                "usd_total": row.facts.get("usd_total", 0.0),
            }
            for row in self._controller.store.history(job_id, after, limit)
        ]

    async def log_parts(self, job_id: str, *, rank: int | None = 0, worker_id: str = "") -> views.JobLog:
        """Where its output is."""
        record = self._record(job_id)
        parts = self._controller.router.logs_of(job_id).parts(rank=rank, worker_id=worker_id)
        return views.JobLog(parts=parts, hide=tuple(record.spec.secrets.values()))

    async def cost(self, job_id: str | None = None) -> views.CostView:
        """The bill."""
        self._settle()
        c = self._controller
        if job_id is not None:
            return self._cost(self._record(job_id))
        jobs = [self._cost(record) for record in c.records.values()]
        whole = Account(idle=c.bill.unused)
        for account in c.bill.jobs.values():
            for purpose in (*PURPOSES, "on_demand"):
                setattr(whole, purpose, getattr(whole, purpose) + getattr(account, purpose))
        return {
            **_bill_view(whole),
            "job_id": "",
            "name": "all",
            "usd_on_demand": Money(whole.on_demand).usd or None,
            "usd_per_h": c.kernel.ledger.burn().usd_per_h,
            "steps_lost": sum(record.steps_lost for record in c.records.values()),
            "preemptions_noticed": sum(record.noticed for record in c.records.values()),
            "preemptions_unnoticed": sum(record.unnoticed for record in c.records.values()),
            "forecast_usd": None,
            "jobs": jobs,
        }

    async def explain(self, job_id: str) -> views.ExplainView:
        """Why it has this width."""
        c, record = self._controller, self._record(job_id)
        state = c.kernel.jobs.get(job_id)
        at_s, weighing = c.weighed.get(job_id, (c.plan_s, None))
        shape = None if state is None else state.shape
        rows, notes = [], []
        if state is not None and weighing is not None:
            rows = alternatives_of(c, c.kernel.snapshot(), state, weighing, shape)
            if not record.rates:
                notes.append("its speed was not measured yet: what is shown is a guess")
            if record.pinned is not None:
                notes.append("it has saved nothing yet: it would start over elsewhere, so it stays where it is")
        elif state is not None:
            notes.append(f"the policy {self._settings.policy} weighed no shapes against each other for it")
        return {
            "job_id": job_id,
            "at_s": at_s,
            "policy": self._settings.policy,
            "shape": "" if shape is None else str(shape),
            "reason": self._reason(record, state) if shape is None else c.reasons.get(job_id, "it gave no reason"),
            "value_of_time_usd_per_h": None if weighing is None else weighing.hour_usd,
            "congestion_usd_per_gpu_h": {} if c.plan is None else dict(c.plan.congestion_usd_per_gpu_h),
            "alternatives": rows,
            "notes": notes,
        }

    async def nodes(self) -> Sequence[views.NodeView]:
        """Every node, and those that went lately."""
        c = self._controller
        since = {lease.node_id: lease.start_us / 1e6 for lease in c.kernel.ledger.open_leases()}
        shown: list[views.NodeView] = [
            {
                "id": node.id,
                "offer_id": node.offer.id,
                "market": node.offer.market.value,
                "gpu": node.offer.gpu,
                "phase": NODE_PHASES[node.phase],
                "usd_per_h": c.kernel.ledger.price(node.offer.id).usd_per_h,
                "since_s": since.get(node.id, 0.0),
                "until_s": c.doomed_s.get(node.id),
                "slots": node.offer.gpus_per_node,
                "job_ids": sorted(node.jobs),
            }
            for node in c.kernel.cluster.nodes.values()
        ]
        for lease in c.kernel.ledger.closed[-50:]:
            ended_s = (lease.end_us or 0) / 1e6
            if c.now_s() - ended_s < GONE_SHOWN_S and not lease.void:
                offer = c.kernel.supply.every[lease.offer_id]
                shown.append(
                    {
                        "id": lease.node_id,
                        "offer_id": offer.id,
                        "market": offer.market.value,
                        "gpu": offer.gpu,
                        "phase": "gone",
                        "usd_per_h": lease.last_price.usd_per_h,
                        "since_s": lease.start_us / 1e6,
                        "until_s": ended_s,
                        "slots": offer.gpus_per_node,
                        "job_ids": [],
                    }
                )
        return shown

    # ------------------------------------------------------------------ money

    async def budget(self) -> views.BudgetView:
        """What may be spent, and what is."""
        c = self._controller
        now_s, budget = c.now_s(), c.kernel.supply.budget
        spent = c.kernel.ledger.spent(now_s)
        reserved = Money() if budget.purse is None else c.kernel.supply.reserved(now_s)
        return {
            "burn_limit_usd_per_h": None if budget.burn is None else budget.burn.usd_per_h,
            "average_usd_per_h": None if budget.average is None else budget.average.usd_per_h,
            "purse_usd": None if budget.purse is None else budget.purse.usd,
            "spent_usd": spent.usd,
            "reserved_usd": reserved.usd,
            "left_usd": None if budget.purse is None else (budget.purse - spent - reserved).usd,
            "burn_usd_per_h": c.kernel.ledger.burn().usd_per_h,
            "exhausted": c.kernel.supply.most_nodes == 0,
        }

    async def set_budget(
        self,
        *,
        burn_limit_usd_per_h: float | None = None,
        average_usd_per_h: float | None = None,
        purse_usd: float | None = None,
    ) -> views.BudgetView:
        """Change what is given."""
        await self.started()
        c = self._controller
        old = c.kernel.supply.budget
        budget = Budget(
            burn=old.burn if burn_limit_usd_per_h is None else Price.from_usd_per_h(burn_limit_usd_per_h),
            average=old.average if average_usd_per_h is None else Price.from_usd_per_h(average_usd_per_h),
            purse=old.purse if purse_usd is None else Money.from_usd(purse_usd),
            until_s=old.until_s if purse_usd is None else None,
        )
        c.tell(news.BudgetChanged(c.now_s(), budget))
        return await self.budget()

    async def top_up(self, usd: float) -> views.BudgetView:
        """Put more into the purse."""
        purse = self._controller.kernel.supply.budget.purse
        if purse is None:
            raise InvalidValue("purse", None, "set before it is topped up: sublet budget set --purse USD")
        if not usd > 0:
            raise InvalidValue("usd", usd, "above 0")
        return await self.set_budget(purse_usd=(purse + Money.from_usd(usd)).usd)

    # ------------------------------------------------------------------ the controller itself

    async def health(self) -> views.HealthView:
        """Alive, and ready or not."""
        c = self._controller
        ago = c.gauges.reconciled_ago_s
        young = time.monotonic() - self._began < FRESH_S
        fresh = young or (ago is not None and ago < FRESH_S)
        why = c.planner.overdue if fresh else "it has not compared itself with its provider lately"
        started = self._started.is_set()
        return {
            "ready": started and not why and not c.stopping,
            "started": started,
            "why": why if started else "it has not started yet",
            "version": __version__,
            "provider": self._settings.provider,
            "engine": self._settings.engine,
            "policy": self._settings.policy,
            "now_s": c.now_s(),
            "speedup": c.clock.speedup,
            "wall_up_s": time.monotonic() - self._began,
            "last_reconcile_wall_s": ago,
            "stopping": c.stopping,
        }

    async def metrics(self) -> views.MetricsView:
        """Counters for Prometheus."""
        c, gauges = self._controller, self._controller.gauges
        return {
            "notice_to_commit_s": gauges.notice_to_commit_s.view(),
            "recovery_s": gauges.recovery_s.view(),
            "decision_s": gauges.decision_s.view(),
            "resizes": dict(gauges.resizes),
            "provider_calls": {call: dict(outcomes) for call, outcomes in gauges.calls.items()},
            "orphans_found": gauges.orphans,
            "checkpoints_damaged": gauges.damaged,
            "alarms": dict(gauges.alarms),
            "reconcile_s": gauges.reconcile_s,
            "reconciled_at": gauges.reconciled_at,
            "price_age_s": c.provider.price_age_s(),
            "steps": {record.id: record.steps_made for record in c.records.values()},
        }

    async def shutdown(self, *, end_jobs: bool = False) -> None:
        """Save and stop every job, give everything back, then let `run` return."""
        await self._controller.stop(end_jobs=end_jobs)

    # ------------------------------------------------------------------ small things

    def _settle(self) -> None:
        self._controller.bill.settle(self._controller.now_s())

    def _record(self, job_id: str) -> JobRecord:
        record = self._controller.records.get(job_id)
        if record is None:
            raise NoSuchJob(job_id, self._controller.records)
        return record

    def _live(self, job_id: str, verb: str) -> JobRecord:
        record = self._record(job_id)
        if record.id not in self._controller.kernel.jobs:
            raise NotNow(job_id, record.outcome, verb)
        if record.refused:
            hint = f"sublet cancel {job_id}, and submit it anew"
            raise NotNow(job_id, f"held ({record.refused})", verb, hint=hint)
        return record

    def _phase(self, record: JobRecord, state: JobState | None) -> views.JobPhase:
        if state is None:
            return record.outcome or "cancelled"  # type: ignore[return-value]
        if record.paused in ("cancel", "preemption"):
            return "stopping"
        if state.phase is Phase.WAITING:
            if record.paused and record.paused != BACK_OFF:
                return "out-of-budget" if record.paused == "budget" else "paused"
            if self._controller.kernel.supply.most_nodes == 0:
                return "out-of-budget"
            return "queued" if state.shape is None else "starting"
        return PHASES[state.phase]

    def _reason(self, record: JobRecord, state: JobState | None) -> str:
        if record.error:
            return gist_of(record.error)
        if state is None:
            return record.outcome
        if record.paused == "budget" and record.spec.purse_usd is not None:
            purse = f"its own budget of USD {record.spec.purse_usd:g} is spent"
            return f"{purse}; next: sublet budget top-up --job {record.id} USD"
        if record.paused:
            return HELD_BACK.get(record.paused, record.refused)
        if why := self._controller.waits.why(record.id):
            return why
        if record.in_vain:
            times = "its last start" if record.in_vain == 1 else f"each of its last {record.in_vain} starts"
            return f"does not train: {times} failed, and it is tried again: {record.in_vain_why}"
        return record.too_narrow or self._controller.reasons.get(record.id, "waits for a plan")

    def _outlook(self, record: JobRecord, state: JobState | None) -> Outlook | None:
        c = self._controller
        if state is None or not state.gpus or not record.spec.sdk:  # a script without it does not tell how far it is
            return None
        placement = c.kernel.tenancy.placement.get(record.id, ())
        pool = c.kernel.supply.pools[c.kernel.cluster.nodes[placement[0][0]].offer.pool]
        return outlook_in(
            [c.kernel.supply.state(offer_id, c.now_s()) for offer_id in pool.offer_ids],
            kernel_job(record, c.clock.speedup),
            state.spread,
            done=state.done,
            left=max(0.0, 1.0 - c.router.share(record)),
            usd_per_h=c.bill.burn_usd_per_h(record.id),
            seed=record.group.step,
        )

    def _view(self, record: JobRecord) -> views.JobView:
        c, group, state = self._controller, record.group, self._controller.kernel.jobs.get(record.id)
        account = c.bill.jobs[record.id]
        ahead = self._outlook(record, state)
        work = group.work or record.spec.work
        report = group.stepped
        total = account.total.usd
        ended = state is None and record.outcome == "finished"
        return {
            **_bill_view(account),
            "id": record.id,
            "name": record.spec.name,
            "phase": self._phase(record, state),
            "reason": self._reason(record, state),
            "submitted_s": record.submitted_s,
            "started_s": record.started_s,
            "ended_s": record.ended_s,
            "workers": group.size if state is not None else 0,
            "workers_wanted": 0 if state is None or state.shape is None else state.shape.gpus,
            "min_workers": record.spec.min_workers,
            "max_workers": record.spec.max_workers,
            "shape": "" if state is None or state.shape is None else str(state.shape),
            "node_ids": [node_id for node_id, _ in c.kernel.tenancy.placement.get(record.id, ())],
            "generation": 0 if state is None else state.generation,
            "step": group.step,
            "epoch": 0 if report is None else report.epoch,
            "done": group.done,
            "work": work,
            "progress": (1.0 if ended else min(1.0, group.done / work))
            if work and (record.spec.sdk or ended)
            else None,
            "loss": None if report is None else report.loss,
            "global_batch": None if report is None else report.global_batch,
            "step_s": None if report is None else report.step_s,
            "samples_per_s": None if report is None or not report.step_s else report.global_batch / report.step_s,
            "usd_per_h": c.bill.burn_usd_per_h(record.id),
            "usd_on_demand": Money(account.on_demand).usd or None,
            "purse_usd": record.spec.purse_usd,
            "deadline_s": record.spec.deadline_s,
            "eta_s": None if ahead is None else ahead.left_s,
            "forecast_usd": None
            if ahead is None
            else {
                "p10": total + ahead.left_usd["p10"],
                "p50": total + ahead.left_usd["p50"],
                "p90": total + ahead.left_usd["p90"],
            },
            "preemptions_noticed": record.noticed,
            "preemptions_unnoticed": record.unnoticed,
            "resizes": record.resizes,
            "steps_lost": record.steps_lost,
            "checkpoint_step": record.checkpoint_step,
            "failures_infra": group.failures["infra"],
            "failures_user": group.failures["user"],
            "exit_code": record.exit_code,
            "error": record.error,
            "warnings": [*filter(None, [record.apart])] if state is None else list(record.warnings.values()),
        }

    def _cost(self, record: JobRecord) -> views.CostView:
        view = self._view(record)
        return {
            **_bill_view(self._controller.bill.jobs[record.id]),
            "job_id": record.id,
            "name": record.spec.name,
            "usd_on_demand": view["usd_on_demand"],
            "usd_per_h": view["usd_per_h"],
            "steps_lost": record.steps_lost,
            "preemptions_noticed": record.noticed,
            "preemptions_unnoticed": record.unnoticed,
            "forecast_usd": view["forecast_usd"],
            "jobs": [],
        }


def _bill_view(account: Account) -> views.BillView:
    return {
        "usd_useful": Money(account.useful).usd,
        "usd_unknown": Money(account.unknown).usd,
        "usd_redone": Money(account.redone).usd,
        "usd_restart": Money(account.restart).usd,
        "usd_idle": Money(account.idle).usd,
        "usd_checkpoint": Money(account.checkpoint).usd,
        "usd_total": account.total.usd,
    }
