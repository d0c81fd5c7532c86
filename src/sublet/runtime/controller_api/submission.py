"""The submission of a job: refused if it can never run, one job for one key; and the cost that is expected of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Snapshot
from sublet.domain.shape import Shape, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import NotNow
from sublet.kernel.waiting import Waiting
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.policies.price.prospect import hour_usd_of, prospect
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.jobs import Feasibility
from sublet.runtime.controller.memory import kernel_job
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.controller_api.explain import alternatives_of, weigh_by_rent
from sublet.runtime.controller_api.protocol import Submitted
from sublet.runtime.controller_api.remaining import estimate_remaining, mix_of
from sublet.runtime.controller_api.views import DryRunView, ExpectedView, Quantiles
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.spec import JobSpec

if TYPE_CHECKING:
    from sublet.domain.weighed import Weighed
    from sublet.runtime.controller.core import Controller


def known_job(controller: Controller, key: str) -> Submitted | None:
    """The job that was submitted with this key, if there is one."""
    if key and (known := controller.store.job_by_key(key)) is not None:
        return {"job_id": known[0], "name": controller.records[known[0]].spec.name}
    if key and (known := controller.archive.shelf.by_key(key)) is not None:
        return {"job_id": known[0], "name": known[1]}
    return None


def submit_job(controller: Controller, spec: JobSpec, key: str) -> Submitted:
    """Take a job; durable when it returns."""
    if (known := known_job(controller, key)) is not None:
        return known
    if controller.stopping:
        raise NotNow(spec.name, "brought to a controller that is stopping", "be submitted", hint="sublet up")
    warning = refuse_impossible(controller.feasibility, spec)
    expected = expected_of(controller, spec)
    number = 1 + len(controller.table.named.get(spec.name, ()))
    number += controller.archive.shelf.called(spec.name)
    record = controller.add(f"{spec.name}-{number}", spec, key)
    if warning:
        controller.note(HistoryRow(kind="Warning", job_id=record.id, text=warning))
    told: Submitted = {"job_id": record.id, "name": spec.name, "expected": expected, "warning": warning}
    return {**told, "notes": list(spec.notes)}


def refuse_impossible(feasibility: Feasibility, spec: JobSpec) -> str:
    """Refuses a job that can never run; a warning for one that may not run."""
    bounds.absolute("workdir", spec.cwd)
    bounds.absolute("checkpoint.uri", spec.checkpoint_dir)
    bounds.absolute("checkpoint.copy", spec.checkpoint_copy)
    feasibility.refuse_beyond_limits(spec)
    feasibility.refuse_beyond_own_purse(spec.name, spec)
    return "; ".join(filter(None, (feasibility.refuse_late(spec), feasibility.doubt_core(spec))))


def expected_of(controller: Controller, spec: JobSpec) -> ExpectedView | None:
    """Beside the jobs that are there, by what can be had; None for policies that weigh no money, or if nothing can."""
    policy = controller.planner.policy
    if not isinstance(policy, Price):
        return None
    job = kernel_job(controller.factory.bare_record(spec.name, spec), controller.clock.speedup)
    terms = Terms.from_snapshot(controller.kernel.snapshot())
    value = hour_usd_of(policy, terms, job)
    ours = prospect(terms, job, value)
    quick = prospect(terms, job, hour_usd_of(policy, terms, replace(job, hurry=True)))
    steady = prospect(terms, job, value, on_demand=True)
    if ours is None or quick is None:
        return None
    known = spec.work is not None and spec.samples_per_s is not None
    return {
        "shape": str(ours.shape),
        "waits": ours.waits,
        "usd_per_h": ours.usd_per_h,
        "usd_per_h_in_a_hurry": quick.usd_per_h,
        "usd_per_h_on_demand": None if steady is None else steady.usd_per_h,
        "seconds": ours.hours * SECONDS_PER_H if known else None,
        "seconds_in_a_hurry": quick.hours * SECONDS_PER_H if known else None,
        "usd": ours.usd if known else None,
        "usd_in_a_hurry": quick.usd if known else None,
        "usd_on_demand": steady.usd if known and steady is not None else None,
    }


async def answer_dry_run(controller: Controller, spec: JobSpec, warning: str = "") -> DryRunView:
    """The policy's answer, as if the job had just been submitted; `warning` is what its owner would be told then."""
    record = controller.factory.bare_record("dry-run", spec)
    job, sizes = kernel_job(record, controller.clock.speedup), controller.factory.sizes
    snapshot = controller.kernel.snapshot(frozen=True)
    state = JobState(job=job, seq=1 << 30, as_of_s=snapshot.now_s, held_since_s=snapshot.now_s)
    waiting = Waiting()
    for other in snapshot.waiting.by(lambda other: other.seq):
        waiting.add(other)
    waiting.add(state)
    plan = await controller.planner.ask(replace(snapshot, waiting=waiting), trial=True)
    shape, weighing = plan.shapes.get(job.id), plan.weighed.get(job.id)
    by_shape = weigh_by_rent(snapshot, state)
    chosen = None if shape is None else by_shape.get(shape)
    notes = [*spec.notes, *([warning] if warning else [])]
    if sizes.knows(record.size_group):
        notes.append(sizes.describe(record.size_group, record.size_h))
    elif spec.work is None or spec.samples_per_s is None:
        assumed = f"{record.size_h:.3g} h on one worker is assumed"
        notes.append(f"how much work it is and how fast it goes is not known: {assumed}")
    reason = "it would wait: nothing is free for it within the budget now" if chosen is None else "as the policy has it"
    found: DryRunView = {
        "name": spec.name,
        "feasible": bool(by_shape),
        "shape": "",
        "workers": 0,
        "usd_per_h": 0.0,
        "starts_s": None,
        "finish_s": None,
        "cost_usd": None,
        "usd_on_demand": None,
        "expected": expected_of(controller, spec),
        "reason": plan.reasons.get(job.id, reason),
        "alternatives": [] if weighing is None else alternatives_of(controller, snapshot, state, weighing, shape),
        "notes": notes,
    }
    if chosen is not None:
        _look_ahead(found, snapshot, state, chosen, by_shape)
    return found


def _look_ahead(
    found: DryRunView, snapshot: Snapshot, state: JobState, chosen: Weighed, by_shape: dict[Shape, Weighed]
) -> None:
    """How it would fare in the shape that it gets. What it costs has its start in it, as what was weighed has."""
    shape = chosen.shape
    pool = snapshot.pools[shape.pool]
    spread = packed(shape.gpus, pool.gpus_per_node)
    offers = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
    mix = mix_of(shape, pool)
    boot_s = max(
        min(each.offer.boot_s for each in offers if each.offer.market is market)
        for market, gpus in ((Market.SPOT, mix.spot), (Market.ON_DEMAND, mix.on_demand))
        if gpus
    )
    start_s = boot_s + state.job.restart_s
    ahead = estimate_remaining(
        offers,
        state.job,
        shape,
        spread,
        spot_nodes=mix.spot_nodes,
        done=0.0,
        left=1.0,
        usd_per_h=chosen.usd_per_h,
    )
    on_demand = [
        row
        for each, row in by_shape.items()
        if each.gpus == shape.gpus and mix_of(each, snapshot.pools[each.pool]).spot == 0
    ]
    found["shape"], found["workers"] = str(shape), shape.gpus
    found["usd_per_h"], found["starts_s"] = chosen.usd_per_h, boot_s
    if ahead is not None:
        found["finish_s"] = _later(ahead.left_s, start_s)
        found["cost_usd"] = _later(ahead.left_usd, start_s * chosen.usd_per_h / SECONDS_PER_H)
    found["usd_on_demand"] = min((row.rent_usd for row in on_demand), default=None)


def _later(found: Quantiles, more: float) -> Quantiles:
    return {"p10": found["p10"] + more, "p50": found["p50"] + more, "p90": found["p90"] + more}
