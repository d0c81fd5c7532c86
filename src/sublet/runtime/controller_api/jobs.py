"""How a job is doing, as `ps` shows it: its phase, the reason in a sentence, its progress, its bill, what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from sublet.domain.money import Money
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.kernel.kernel import Kernel
from sublet.perf.preemption import believe_reclaims
from sublet.runtime.controller.memory import ASKS, JobRecord, kernel_job, needs_secrets
from sublet.runtime.controller.money import Bill
from sublet.runtime.controller.states import Ending, Hold
from sublet.runtime.controller.watch import gist_of
from sublet.runtime.controller_api.budgets import purse_reason
from sublet.runtime.controller_api.grids import gpu_views, move_views, place_views
from sublet.runtime.controller_api.money import bill_view
from sublet.runtime.controller_api.remaining import Remaining, estimate_remaining
from sublet.runtime.controller_api.views import JobPhase, JobView, Quantiles

__all__ = ["JobSources", "job_view", "reason_of"]

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
    """The tables in which a job is looked up, at one moment."""

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
    """Why it is in this phase, or has so many workers, in a sentence."""
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
