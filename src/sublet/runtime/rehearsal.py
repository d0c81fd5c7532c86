"""`--dry-run`: ask the policy about a job that is not there, and tell what would become of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.domain.plan import JobState
from sublet.kernel.waiting import Waiting
from sublet.runtime.alternatives import alternatives_of
from sublet.runtime.outlook import outlook
from sublet.runtime.record import UNKNOWN_H, kernel_job
from sublet.runtime.spec import JobSpec
from sublet.runtime.views import DryRunView

if TYPE_CHECKING:
    from sublet.runtime.controller import Controller

__all__ = ["rehearse"]


async def rehearse(controller: Controller, spec: JobSpec) -> DryRunView:
    """The policy's answer, as if the job had just been submitted."""
    job = replace(kernel_job(controller.workforce.bare_record("dry-run", spec), controller.clock.speedup))
    snapshot = controller.kernel.snapshot(frozen=True)
    state = JobState(job=job, seq=1 << 30, as_of_s=snapshot.now_s, held_since_s=snapshot.now_s)
    waiting = Waiting()
    for other in snapshot.waiting.by(lambda other: other.seq):
        waiting.add(other)
    waiting.add(state)
    plan = await controller.planner.ask(replace(snapshot, waiting=waiting))
    shape = plan.shapes.get(job.id)
    rows = alternatives_of(controller, replace(state, shape=shape), plan.value_of_time_usd_per_h or 0.0, {})
    notes = []
    if spec.work is None or spec.samples_per_s is None:
        notes.append(f"how much work it is and how fast it goes is not known: {UNKNOWN_H:g} h on one worker is assumed")
    chosen = next((row for row in rows if row["chosen"]), None)
    if shape is None or chosen is None:
        return {
            "name": spec.name,
            "feasible": bool(rows),
            "shape": "",
            "workers": 0,
            "usd_per_h": 0.0,
            "starts_s": None,
            "finish_s": None,
            "cost_usd": None,
            "usd_on_demand": None,
            "reason": plan.reasons.get(job.id, "it would wait: nothing is free for it within the budget now"),
            "alternatives": rows,
            "notes": notes,
        }
    offers = [snapshot.offers[offer_id].offer for offer_id in snapshot.pools[shape.pool].offer_ids]
    ahead = outlook(
        share_left=1.0,
        rate=job.speed.rate(offers[0].gpu, (shape.gpus,), 0.0),
        usd_per_h=chosen["usd_per_h"],
        losses_per_h=min(offer.hazard_per_h for offer in offers) * shape.gpus,
        pause_s=job.restart_s,
        seed=0,
    )
    boot_s = min(offer.boot_s for offer in offers)
    on_demand = [row["left_usd"] for row in rows if row["market"] == "on-demand" and row["workers"] == shape.gpus]
    return {
        "name": spec.name,
        "feasible": True,
        "shape": str(shape),
        "workers": shape.gpus,
        "usd_per_h": chosen["usd_per_h"],
        "starts_s": boot_s,
        "finish_s": None
        if ahead is None
        else {
            "p10": boot_s + ahead.left_s["p10"],
            "p50": boot_s + ahead.left_s["p50"],
            "p90": boot_s + ahead.left_s["p90"],
        },
        "cost_usd": None if ahead is None else ahead.left_usd,
        "usd_on_demand": on_demand[0] if on_demand else None,
        "reason": plan.reasons.get(job.id, ""),
        "alternatives": rows,
        "notes": notes,
    }
