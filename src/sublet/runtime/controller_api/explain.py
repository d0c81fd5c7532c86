"""The options that a policy weighed for a job, for people to read: the numbers that it compared, and no others.

A policy that weighs nothing (it shares out by turn, or by age) has no such table. How long one shape takes and costs is
asked of the same model that `price` plans with, so that `--dry-run`, `ps` and `explain` say one number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sublet.domain.job import Speed
from sublet.domain.plan import JobState, Snapshot
from sublet.domain.shape import Shape, Spread, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.domain.weighed import Weighed, Weighing
from sublet.perf.goodput import efficiency
from sublet.perf.live.speed import LiveSpeed
from sublet.planning.menu import menu_of
from sublet.planning.options import WeighedOptions, options_of_all
from sublet.planning.terms import Terms
from sublet.runtime.controller_api.grids import depth_note, grid_note
from sublet.runtime.controller_api.remaining import mix_of, risk_of
from sublet.runtime.controller_api.views import AlternativeView, ExplainView

if TYPE_CHECKING:
    from sublet.runtime.controller.core import Controller
    from sublet.runtime.controller.memory import JobRecord

SHOWN = 24
TRIFLE_H = 1 / SECONDS_PER_H
TRIFLE_USD = 1e-9


def explain_view(controller: Controller, record: JobRecord, *, policy: str, reason: str) -> ExplainView:
    """Why a job has this worker count, and what else was weighed; `reason` is why it has none, where it has none."""
    state = controller.kernel.jobs.get(record.id)
    at_s, weighing = controller.decisions.weighed.get(record.id, (controller.decisions.plan_s, None))
    shape = None if state is None else state.shape
    rows, notes = [], []
    if state is not None and weighing is not None:
        rows = alternatives_of(controller, controller.kernel.snapshot(), state, weighing, shape)
        if not record.rates:
            notes.append("its speed was not measured yet: what is shown is a guess")
        if record.size_group:
            notes.append(controller.factory.sizes.describe(record.size_group, record.size_h, record.had_h))
    elif state is not None and not controller.decisions.refused:
        notes.append(f"the policy {policy} weighed no shapes against each other for it")
    if state is not None and record.pinned is not None:
        notes.append(
            "whether it would go on elsewhere from the files that it wrote is unknown, so it stays where it is"
            if record.wrote
            else "it has saved nothing yet: it would start over elsewhere, so it stays where it is"
            if record.wrote is False
            else "whether it would go on elsewhere is unknown: nothing that it saved was seen yet, so it stays here"
        )
    if state is not None and (why_batch := _why_batch(state, shape)):
        notes.append(why_batch)
    if state is not None and (grid := grid_note(record.group, record.grids)):
        notes.append(grid)
    if state is not None and (depth := depth_note(record.spec, record.grids)):
        notes.append(depth)
    if saved := record.tiers.describe():
        notes.append(saved)
    if state is not None and record.awaited is not None:
        notes.append(f"it lost a node (elastic.on_node_loss: replace): {record.awaited.describe(controller.now_s())}")
    if state is not None and controller.decisions.refused:
        notes.append(
            f"the policy's plans are refused, and what was decided before stands: {controller.decisions.refused}"
        )
    return {
        "job_id": record.id,
        "at_s": at_s,
        "policy": policy,
        "shape": "" if shape is None else str(shape),
        "reason": reason if shape is None else controller.decisions.reasons.get(record.id, "it gave no reason"),
        "value_of_time_usd_per_h": None if weighing is None else weighing.hour_usd,
        "congestion_usd_per_gpu_h": {}
        if controller.decisions.plan is None
        else dict(controller.decisions.plan.congestion_usd_per_gpu_h),
        "alternatives": rows,
        "notes": notes,
    }


def alternatives_of(
    controller: Controller, snapshot: Snapshot, state: JobState, weighing: Weighing, shape: Shape | None
) -> list[AlternativeView]:
    """The weighed options, the least first; `shape` is the one that was chosen."""
    rows, in_money = weighing.rows(), weighing.hour_usd is not None
    chosen = next((row for row in rows if row.shape == shape), None)
    shown = list(rows[:SHOWN])
    if chosen is not None and chosen not in shown:
        shown[-1] = chosen
    return [_view(controller, snapshot, state, row, chosen, in_money=in_money) for row in shown]


def weigh_by_rent(snapshot: Snapshot, state: JobState) -> dict[Shape, Weighed]:
    """Hours and rent of every shape, by the model of `price`, whatever policy decides."""
    terms = Terms.from_snapshot(snapshot)
    table = options_of_all([menu_of(state.job, terms.sites)], [state], terms.now_s, [1.0], terms.rent_R)
    weighing = WeighedOptions(table=table, row=0, rent_R=terms.rent_R, most_R=terms.alone_R)
    return {row.shape: row for row in weighing.rows()}


def _view(
    controller: Controller, snapshot: Snapshot, state: JobState, row: Weighed, chosen: Weighed | None, *, in_money: bool
) -> AlternativeView:
    pool = snapshot.pools[row.shape.pool]
    rate = state.job.speed_on(row.shape).rate(pool.gpu, packed(row.shape.gpus, pool.gpus_per_node), state.done)
    mix, risk = mix_of(row.shape, pool), risk_of(row.shape, pool, snapshot.offers, state.job, row.hours)
    return {
        "shape": str(replace(row.shape, batch=None)),  # which stands beside it
        "workers": row.shape.gpus,
        "workers_on_demand": mix.on_demand,
        "market": mix.market,
        "grid": None if row.shape.grid is None else str(row.shape.grid),
        "batch": row.shape.batch,
        "known": _known(state.job.speed, pool.gpu, packed(row.shape.gpus, pool.gpus_per_node)),
        "usd_per_h": row.usd_per_h,
        "losses": risk.losses,
        "restarts": risk.restarts,
        "samples_per_s": _samples_per_s(controller, state, rate),
        "left_s": row.hours * SECONDS_PER_H,
        "left_usd": row.rent_usd,
        "time_usd": row.time_usd if in_money else None,
        "scarce_usd": row.scarce_usd if in_money else None,
        "other_usd": row.other_usd if in_money else None,
        "price_usd": row.usd if in_money else None,
        "chosen": row is chosen,
        "why": ("" if row is chosen else _beyond(row, snapshot)) or _why(row, chosen, in_money=in_money),
    }


def _known(speed: Speed, gpu: str, spread: Spread) -> str:
    return str(speed.source(gpu, spread)) if isinstance(speed, LiveSpeed) else ""


def _why_batch(state: JobState, shape: Shape | None) -> str:
    """Why this batch; "" of a job whose batch is fixed."""
    speed = state.job.speed
    if not isinstance(speed, LiveSpeed) or len(speed.batches) == 1:
        return ""
    limits = f"{speed.batches[0]} to {speed.batches[-1]}"
    if speed.noise is None:
        return f"its batch of {speed.batch_now} (of {limits}) stays: its gradient noise cannot be told yet"
    batch = speed.batch_now if shape is None or shape.batch is None else shape.batch
    worth = float(efficiency(speed.noise, speed.initial, batch))
    chosen = "is its own" if shape is None or shape.batch is None else "is the plan's"
    grows = f"; by its trend the noise comes to {speed.phases[-1][1]:.0f} before the end" if speed.phases else ""
    return (
        f"its batch of {batch} (of {limits}) {chosen}: at a measured gradient noise of {speed.noise:.0f} samples, one "
        f"of them is worth {worth:.2f} of one at {speed.initial}{grows}"
    )


def _why(row: Weighed, chosen: Weighed | None, *, in_money: bool) -> str:
    """How it compares with what was chosen."""
    if row is chosen:
        return "chosen"
    if not row.obtainable:
        return "cannot be had now"
    if chosen is None:
        return ""
    if in_money:
        more = row.usd - chosen.usd
        return f"USD {more:.2f} more in all" if more >= 0 else f"USD {-more:.2f} less, but others need it more"
    later_h = row.hours - chosen.hours
    if later_h > TRIFLE_H:
        return f"{later_h:.2f} h later"
    return "as soon, and not cheaper" if later_h >= -TRIFLE_H else "sooner, but others need it more"


def _beyond(row: Weighed, snapshot: Snapshot) -> str:
    """The money that is missing; each of its rows alone could be had."""
    burn = snapshot.budget.burn
    if burn is None or row.usd_per_h <= burn.usd_per_h + TRIFLE_USD:
        return ""
    return f"above the limit of USD {burn.usd_per_h:.2f}/h"


def _samples_per_s(controller: Controller, state: JobState, rate: float) -> float | None:
    record = controller.records.get(state.job.id)
    work = record.group.work or record.spec.work if record is not None else None
    return None if work is None else rate * work * controller.clock.speedup
