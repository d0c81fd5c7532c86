"""`--dry-run`: ask the policy about a job that is not there, and tell what would become of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Snapshot
from sublet.domain.shape import Shape, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.kernel.waiting import Waiting
from sublet.runtime.controller.memory import kernel_job
from sublet.runtime.controller_api.explain import alternatives_of, weigh_by_rent
from sublet.runtime.controller_api.remaining import estimate_remaining, mix_of
from sublet.runtime.controller_api.submission import expected_of
from sublet.runtime.controller_api.views import DryRunView, Quantiles
from sublet.runtime.jobs.spec import JobSpec

if TYPE_CHECKING:
    from sublet.domain.weighed import Weighed
    from sublet.runtime.controller.core import Controller

__all__ = ["answer_dry_run"]


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
