"""What else a job could run on, and what that would cost: the other side of every decision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sublet.domain.plan import JobState
from sublet.domain.shape import packed
from sublet.runtime.views import AlternativeView

if TYPE_CHECKING:
    from sublet.runtime.controller import Controller

__all__ = ["alternatives_of"]

SHOWN = 24


def alternatives_of(
    controller: Controller, state: JobState, value_usd_per_h: float, congestion: Mapping[str, float]
) -> list[AlternativeView]:
    """Every width of every pool, cheapest first by what the policy compares."""
    snapshot, job = controller.kernel.snapshot(), state.job
    left = job.work - state.done_at(snapshot.now_s)
    rows: list[AlternativeView] = []
    for pool in snapshot.pools.values():
        if not job.may_run_in(pool.name):
            continue
        offers = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
        cheapest = min(offers, key=lambda offer: offer.price)
        rent = cheapest.price.usd_per_h / pool.gpus_per_node
        for workers in range(job.min_gpus, job.max_gpus + 1):
            rate = job.speed.rate(pool.gpu, packed(workers, pool.gpus_per_node), state.done)
            if rate <= 0:
                continue
            hours = left / rate / 3600.0
            usd_per_h = rent * workers
            chosen = state.shape is not None and state.shape.pool == pool.name and state.shape.gpus == workers
            moving_h = 0.0 if chosen else job.restart_s / 3600.0
            paid = value_usd_per_h * job.weight + usd_per_h + congestion.get(pool.name, 0.0) * workers
            rows.append(
                {
                    "shape": f"{workers} x {pool.name}",
                    "workers": workers,
                    "market": cheapest.offer.market.value,
                    "usd_per_h": usd_per_h,
                    "samples_per_s": _samples_per_s(controller, state, rate),
                    "left_s": hours * 3600.0,
                    "left_usd": hours * usd_per_h,
                    "price_usd": paid * (hours + moving_h),
                    "chosen": chosen,
                    "why": "chosen" if chosen else _why_not(sum(o.most for o in offers) * pool.gpus_per_node, workers),
                }
            )
    rows.sort(key=lambda row: row["price_usd"] or math.inf)
    return rows[:SHOWN]


def _samples_per_s(controller: Controller, state: JobState, rate: float) -> float | None:
    work = controller.records[state.job.id].group.work if state.job.id in controller.records else None
    return None if work is None else rate * work * controller.clock.speedup


def _why_not(most_gpus: float, workers: int) -> str:
    return "cannot be had now" if most_gpus < workers else "costs more in time and rent together"
