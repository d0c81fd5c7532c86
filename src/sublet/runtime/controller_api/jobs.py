"""How a job is doing, as `ps` shows it: its phase, the reason in a sentence, its progress, its bill, what is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from sublet.domain.money import Money
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.errors import Infeasible, InvalidValue, NoSuchJob, NotNow, OutOfBudget
from sublet.kernel.kernel import Kernel
from sublet.perf.preemption import believe_reclaims
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.inbox import Ending, Hold
from sublet.runtime.controller.memory import ASKS, JobRecord, kernel_job, needs_secrets
from sublet.runtime.controller.money import Bill
from sublet.runtime.controller.watch import HistoryRow, gist_of, width
from sublet.runtime.controller_api.budgets import OwnBudget, purse_reason
from sublet.runtime.controller_api.grids import gpu_views, move_views, place_views
from sublet.runtime.controller_api.money import bill_view
from sublet.runtime.controller_api.remaining import Remaining, estimate_remaining
from sublet.runtime.controller_api.views import JobPhase, JobView, Quantiles

PASSING = (Hold.NONE, Hold.BACK_OFF, Hold.BUDGET)  # ends by itself or with money: its owner's word is stronger


class JobCommands:
    """Each refuses what does not fit the job's phase; what it did is in the job's history, and durable."""

    def __init__(self, controller: Controller) -> None:
        self._inbox, self._records, self._jobs = controller.inbox, controller.records, controller.jobs
        self._bill, self._feasibility = controller.bill, controller.feasibility
        self._secret_files = controller.secret_files
        self._take_back = controller.writing()(controller.memory.take_back)  # it is on disk before it is shown

    def find(self, job_id: str) -> JobRecord:
        """The record of a job, however long ago it ended."""
        record = self._records.get(job_id) or self._take_back(job_id)
        if record is None:
            raise NoSuchJob(job_id, self._records)
        return record

    def cancel(self, job_id: str, *, now: bool) -> JobRecord:
        """End it, with a last checkpoint unless `now`; what it had saved stays. One that failed: for good."""
        record = self.find(job_id)
        self._jobs.cancel(record, now=now)
        return record

    def pause(self, job_id: str) -> JobRecord:
        """Save it and take its workers away, until its owner resumes it: neither time nor money does."""
        record = self._find_live(job_id, "pause")
        if record.paused in PASSING:  # one that is being cancelled stays so
            self._note("Paused", job_id, "held back by its owner")
            self._jobs.hold(record, Hold.OWNER)
        return record

    def resume(self, job_id: str, *, start_over: bool, secrets: Mapping[str, str] | None = None) -> JobRecord:
        """Let it go on, if its own budget lets it; with `start_over`, at step 0 if all its checkpoints are damaged.

        `secrets` take the place of those that it had.
        """
        record = self.find(job_id)
        if record.closed:
            raise NotNow(job_id, "failed, and was ended for good by 'sublet cancel'", "resume", hint="submit it anew")
        if record.outcome in (Ending.NONE, Ending.FAILED):
            self._refuse_spent_purse(record)
            self._take_secrets(record, secrets or {})
        if record.outcome is Ending.FAILED:
            self._note("Resumed", job_id, "is tried again")
            self._jobs.revive(record)
        record = self._find_live(job_id, "resume")
        if record.paused is Hold.CANCEL:
            raise NotNow(job_id, "being cancelled", "resume", hint="wait for its end, then submit it again")
        if record.paused:
            self._note("Resumed", job_id, "may go on, at step 0 if it has to" if start_over else "may go on")
            self._jobs.resume(record, start_over=start_over)
        return record

    def _take_secrets(self, record: JobRecord, given: Mapping[str, str]) -> None:
        """Refused unless all of them are here then."""
        names = list(record.spec.secrets)
        if strange := [name for name in given if name not in names]:
            allowed = f"those that {record.id} was submitted with: {', '.join(names) or 'none'}"
            raise InvalidValue("--secret", ", ".join(strange), allowed)
        kept = self._secret_files.read(record.id) or {}
        if lacking := [name for name in names if name not in {**kept, **given}]:
            how = "failed, and its secrets are deleted" if record.outcome else "held, for its secrets are not here"
            hint = f"sublet resume {record.id} " + " ".join(f"--secret {name}" for name in lacking)
            raise NotNow(record.id, how, "resume", hint=hint)
        if given:
            spec = replace(record.spec, secrets={**kept, **given})  # refused where it cannot be a variable
            self._secret_files.keep(record.id, spec.secrets)
            record.spec = record.group.spec = spec
            self._note("Secrets", record.id, f"has {', '.join(given)} anew")

    def top_up(self, job_id: str, usd: float) -> JobRecord:
        """Let it spend more; if it was held for want of money, it goes on."""
        record = self.find(job_id)
        if record.outcome is not Ending.FAILED:
            record = self._find_live(job_id, "be given more")
        purse = record.spec.purse_usd
        if purse is None:
            raise InvalidValue("purse", None, f"set when it is submitted: job {job_id} has no limit of its own")
        more = (Money.from_usd(purse) + Money.from_usd(usd)).usd
        self._note("Budget", job_id, f"may spend USD {more:g} in all from now on, USD {usd:g} more")
        left = max(0.0, more - self._spent_usd(record))  # what the planner hears of it
        self._jobs.respecify(record, replace(record.spec, purse_usd=more), left_usd=left)
        if record.paused is Hold.BUDGET:
            with contextlib.suppress(OutOfBudget, NotNow):  # too little, or something else: it stays, and says so
                return self.resume(job_id, start_over=False)
        return record

    def scale(self, job_id: str, *, low: int, high: int) -> JobRecord:
        """Other worker counts; a script that could have several workers goes on looking for its group."""
        record = self._find_live(job_id, "scale")
        sizes = tuple(size for size in record.spec.sizes if low <= size <= high)
        if record.spec.sizes and not sizes:
            allowed = f"a range with one of its sizes: {', '.join(map(str, record.spec.sizes))}"
            raise InvalidValue("workers", f"{low}..{high}", allowed)
        grouped = record.spec.torchrun or record.spec.max_workers > 1
        spec = replace(record.spec, min_workers=low, max_workers=high, sizes=sizes, torchrun=grouped)
        self._feasibility.refuse_beyond_limits(spec)
        self._note("Scaled", job_id, f"{width(low, high)} from now on")
        self._jobs.respecify(record, spec)
        return record

    def _find_live(self, job_id: str, verb: str) -> JobRecord:
        record = self.find(job_id)
        if record.id not in self._inbox.kernel.jobs:
            raise NotNow(job_id, record.outcome, verb)
        if record.refused:
            hint = f"sublet cancel {job_id}, and submit it anew"
            raise NotNow(job_id, f"held ({record.refused})", verb, hint=hint)
        return record

    def _refuse_spent_purse(self, record: JobRecord) -> None:
        if record.spec.purse_usd is None:
            return
        spent = self._spent_usd(record)
        try:
            self._feasibility.refuse_beyond_own_purse(record.id, record.spec, spent_usd=spent)
        except Infeasible as error:
            hint = str(error).partition("\n  next: ")[2]
            what = f"job {record.id} cannot go on, its own budget is spent"
            raise OutOfBudget(what, spent_usd=spent, limit_usd=record.spec.purse_usd, hint=hint) from None

    def _spent_usd(self, record: JobRecord) -> float:
        self._bill.settle(self._inbox.now_s())
        return self._bill.jobs[record.id].total.usd

    def _note(self, kind: str, job_id: str, text: str) -> None:
        self._inbox.note(HistoryRow(kind=kind, job_id=job_id, text=text))


PHASES = {
    Phase.WAITING: JobPhase.QUEUED,
    Phase.STARTING: JobPhase.STARTING,
    Phase.RUNNING: JobPhase.RUNNING,
    Phase.RESIZING: JobPhase.RESIZING,
    Phase.STOPPING: JobPhase.STOPPING,
    Phase.BROKEN: JobPhase.RECOVERING,
}
HELD_BACK = {
    Hold.OWNER: "held back by its owner",
    Hold.BUDGET: "its budget is spent",
    Hold.CANCEL: "saves, and is ended then",
    Hold.GIVEN_UP: "saves, and is given up then: its nodes went too often",
    Hold.DAMAGED: f"{ASKS} 'sublet resume JOB' looks again, '--start-over' begins at 0",
    Hold.COPY: "its checkpoints are brought from checkpoint.copy; 'sublet resume JOB' goes on without",
    Hold.BACK_OFF: "its nodes ended within seconds of its start: it waits before the next",
}
UNMODIFIED = {  # of a script without the SDK nobody but itself makes a checkpoint
    Hold.CANCEL: "gets SIGTERM, on which it may save by itself, and is ended then",
    Hold.GIVEN_UP: "gets SIGTERM, on which it may save by itself, and is given up then: its nodes went too often",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSources:
    """The sources of a view of a job, at one moment."""

    kernel: Kernel
    bill: Bill
    now_s: float  # cloud
    speedup: float  # cloud seconds per wall second
    plan_reasons: Mapping[str, str]  # job -> why the last plan gave it what it has
    wait_reason: Callable[[str], str]  # "" for a job that does not wait
    knows_size: Callable[[str], bool]  # whether jobs of this group have finished, of those that do not say their size


def job_view(record: JobRecord, sources: JobSources) -> JobView:
    """One job, now."""
    kernel, bill = sources.kernel, sources.bill
    group, report, state = record.group, record.group.stepped, kernel.jobs.get(record.id)
    account, total_usd = bill.jobs[record.id], bill.jobs[record.id].total.usd
    remaining = _remaining(record, state, sources)
    short = purse_reason(kernel, record.id, sources.now_s)
    said = report if record.spec.sdk else None  # a loop of the script's own tells steps, and nothing of samples
    sized = state is not None and not group.work and sources.knows_size(record.size_group)
    return {
        **bill_view(account),
        "id": record.id,
        "name": record.spec.name,
        "user": record.spec.user,
        "team": record.spec.team,
        "phase": _phase_of(record, state, out_of_money=kernel.supply.purse.most_nodes == 0 or bool(short)),
        "reason": reason_of(record, state, sources),
        "submitted_s": record.submitted_s,
        "started_s": record.started_s,
        "ended_s": record.ended_s,
        "workers": group.size if state is not None else 0,
        "workers_wanted": 0 if state is None or state.shape is None else state.shape.gpus,
        "min_workers": record.spec.min_workers,
        "max_workers": record.spec.max_workers,
        "on_node_loss": str(record.spec.on_node_loss),
        "shape": "" if state is None or state.shape is None else _shape_shown(record, state.shape),
        "grid": "" if state is None or not group.size else str(group.places.formed or ""),
        "spares": group.places.spares(group.workers.values()),
        "places": place_views(group),
        "gpus": gpu_views(group),
        "moves": move_views([record.grids]),
        "node_ids": [node_id for node_id, _ in kernel.tenancy.placement.get(record.id, ())],
        "generation": 0 if state is None else state.generation,
        "step": group.step,
        "epoch": 0 if report is None else report.epoch,
        "done": group.done,
        "work": group.work or record.spec.work,
        "progress": _progress_of(record, state),
        "had_h": record.had_h if sized else None,
        "size_h": record.size_h if sized else None,
        "loss": None if said is None else said.loss,
        "global_batch": None if said is None else said.global_batch,
        "step_s": None if report is None else report.step_s,
        "samples_per_s": None if said is None or not said.step_s else said.global_batch / said.step_s,
        "usd_per_h": bill.burn_usd_per_h(record.id),
        "usd_on_demand": Money(account.on_demand).usd or None,
        "purse_usd": record.spec.purse_usd,
        "deadline_s": record.spec.deadline_s,
        "eta_s": None if remaining is None else remaining.left_s,
        "forecast_usd": None if remaining is None else _shifted(remaining.left_usd, total_usd),
        "preemptions_noticed": record.noticed,
        "preemptions_unnoticed": record.unnoticed,
        "resizes": record.resizes,
        "steps_lost": record.steps_lost,
        "checkpoint_step": record.checkpoint_step,
        "checkpoint_newest": record.tiers.newest_step,
        "checkpoint_tier": record.tiers.newest,
        "failures_infra": group.failures["infra"],
        "failures_user": group.failures["user"],
        "exit_code": record.exit_code,
        "error": record.error,
        "warnings": _warnings(record, state),
        "notes": list(record.spec.notes),
    }


def _shape_shown(record: JobRecord, shape: Shape) -> str:
    """With the grid that its workers sit in, where the plan left that to the job, and what is spare."""
    formed = record.group.places.formed if record.spec.cut else None
    if shape.grid is None and formed is not None and formed.gpus <= shape.gpus:
        shape = replace(shape, grid=formed)
    return f"{shape}, {shape.spares} spare" if shape.spares else str(shape)


def _warnings(record: JobRecord, state: JobState | None) -> list[str]:
    if state is None:
        return [*filter(None, [record.apart])]
    short = record.group.widths.micro_batch
    told = f"takes {short} at a time of its samples, as more did not fit; next: micro_batch={short} in its session"
    return [*record.warnings.values(), *([told] if short else [])]


def reason_of(record: JobRecord, state: JobState | None, sources: JobSources) -> str:
    """Why it is in this phase, or has this worker count, in a sentence."""
    if record.error:
        return gist_of(record.error)
    if state is None:
        return record.outcome
    if record.paused is Hold.BUDGET and record.spec.purse_usd is not None:
        spent = f"USD {sources.bill.jobs[record.id].total.usd:.4f} of its own budget of USD {record.spec.purse_usd:g}"
        return (
            f"has spent {spent}, the rest is kept back for stopping; next: sublet budget top-up --job {record.id} USD"
        )
    if record.paused is Hold.SECRETS:
        return needs_secrets(record)
    if record.paused is Hold.GIVEN_UP and record.blamed:
        return f"{'saves and leaves' if record.spec.sdk else 'leaves'}, and has failed then: {record.blamed}"
    if record.paused:
        words = HELD_BACK if record.spec.sdk else HELD_BACK | UNMODIFIED
        return words.get(record.paused, record.refused)
    if why := purse_reason(sources.kernel, record.id, sources.now_s) or sources.wait_reason(record.id):
        return why
    if record.in_vain:
        times = "its last start" if record.in_vain == 1 else f"each of its last {record.in_vain} starts"
        return f"does not train: {times} ended early, and it is tried again: {record.in_vain_why}"
    if record.awaited is not None:
        return f"{record.awaited.describe(sources.now_s)}; then it goes on with what there is"
    return record.too_narrow or sources.plan_reasons.get(record.id, "waits for a plan")


def _phase_of(record: JobRecord, state: JobState | None, *, out_of_money: bool) -> JobPhase:
    if state is None:
        return JobPhase(record.outcome or Ending.CANCELLED)
    if record.paused in (Hold.CANCEL, Hold.GIVEN_UP):
        return JobPhase.STOPPING
    if state.phase is not Phase.WAITING:
        return PHASES[state.phase]
    if record.paused and record.paused not in (Hold.BACK_OFF, Hold.COPY):
        return JobPhase.OUT_OF_BUDGET if record.paused is Hold.BUDGET else JobPhase.PAUSED
    if out_of_money:
        return JobPhase.OUT_OF_BUDGET
    return JobPhase.QUEUED if state.shape is None else JobPhase.STARTING


def _progress_of(record: JobRecord, state: JobState | None) -> float | None:
    """0 to 1; a script that tells nothing does not say how far it is until it has finished."""
    work, finished = record.group.work or record.spec.work, state is None and record.outcome is Ending.FINISHED
    if not work or not (record.spec.sdk or _tells_work(record) or finished):
        return None
    return 1.0 if finished else min(1.0, record.group.done / work)


def _tells_work(record: JobRecord) -> bool:
    """It has no session, and says how much it has to do all the same (`train.checkpointed`)."""
    return not record.spec.sdk and record.group.work is not None


def _remaining(record: JobRecord, state: JobState | None, sources: JobSources) -> Remaining | None:
    if state is None or not state.gpus or not (record.spec.sdk or _tells_work(record)):
        return None
    kernel = sources.kernel
    placement = kernel.tenancy.placement.get(record.id, ())
    held = [(kernel.cluster.nodes[node_id].offer, gpus) for node_id, gpus in placement]
    pool, usd_per_h = kernel.supply.pools[held[0][0].pool], sources.bill.burn_usd_per_h(record.id)
    offers = [kernel.supply.offering.state(offer_id, sources.now_s) for offer_id in pool.offer_ids]
    follows_from = (state, record.group.stepped, record.share, usd_per_h, believe_reclaims(offers))
    if record.foreseen is None or record.foreseen[0] != follows_from:  # it is asked for more often than it changes
        found = estimate_remaining(
            offers,
            kernel_job(record, sources.speedup),
            _shape_held(pool.name, state, held),
            state.spread,
            spot_nodes=sum(offer.market is Market.SPOT for offer, _ in held),
            done=state.done,
            left=max(0.0, 1.0 - record.share),
            usd_per_h=usd_per_h,
            believed=state.job,
        )
        record.foreseen = follows_from, found
    return cast("Remaining | None", record.foreseen[1])


def _shape_held(pool: str, state: JobState, held: Sequence[tuple[Offer, int]]) -> Shape:
    """As it stands, whatever is promised: what is on demand is steady, and a grid that has lost GPUs is none."""
    steady = sum(gpus for offer, gpus in held if offer.market is not Market.SPOT)
    ordered, gpus = state.runs_in, sum(gpus for _, gpus in held)
    if ordered is None or (ordered.grid is not None and ordered.grid.gpus > gpus):
        return Shape(pool, gpus, steady=steady)
    return replace(ordered, pool=pool, gpus=gpus, steady=steady)


def _shifted(quantiles: Quantiles, more: float) -> Quantiles:
    return {"p10": more + quantiles["p10"], "p50": more + quantiles["p50"], "p90": more + quantiles["p90"]}


def own_budgets(controller: Controller) -> dict[str, OwnBudget]:
    """The budgets of jobs that live and have one in their file."""
    found = {}
    for record in controller.table.live.values():
        if record.spec.purse_usd is not None:
            controller.bill.settle_job(record.id, controller.now_s())
            found[record.id] = OwnBudget(
                limit_usd=record.spec.purse_usd,
                spent_usd=controller.bill.jobs[record.id].total.usd,
                reserved_usd=controller.jobs.budgets.stop_usd(record),
                burn_usd_per_h=controller.bill.burn_usd_per_h(record.id),
                exhausted=record.paused is Hold.BUDGET,
            )
    return found
