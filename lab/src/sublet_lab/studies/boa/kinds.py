"""Two kinds of GPU and spot: the same solver, only the set of shapes differs."""

from __future__ import annotations

import math

import numpy as np

from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.shape import packed
from sublet.errors import Infeasible, MissingData
from sublet.perf.measured import goodput_model, measured_step_time
from sublet.perf.speedup import Table as SpeedTable
from sublet.rental.plan import rental_plan
from sublet_lab.studies.study import Findings, StudyTable

# The illustration in the notes on budget-optimal rental states prices, reclaims and results, but neither batches (8
# times the initial ones), sizes (60, 60 and 2 epochs) nor worker counts: these round numbers give its figures.
MIX = {"cifar10": (66, 1024, 60 * 50_000), "deepspeech2": (12, 160, 60 * 4_074), "bert": (7, 96, 2 * 97_077)}
NODES = {"T4": (4, 0.978), "A100": (8, 4.10)}
ROWS: dict[str, tuple[dict[int, float], float]] = {  # USD per hour -> minutes; and the smallest budget
    "T4 only": ({15: 16.7, 20: 15.6}, 11.9),
    "A100 only": ({15: 8.7, 20: 5.6}, 12.1),
    "both": ({10: 7.3, 15: 6.2, 20: 5.5}, 8.3),
    "both + spot": ({6: 6.2, 10: 4.7, 15: 4.5, 20: 4.5}, 3.0),
}
BUDGETS = (6, 10, 15, 20)


def kinds() -> Findings:
    """The worth of a budget, beside the notes on rental: no check, because missing facts were fitted to them."""
    try:
        mix = measured_mix()
    except MissingData:
        return Findings(checks=[], notes=["two kinds and spot: left out, the step times of Sia are not here"])
    rows = []
    for name, (minutes, least) in ROWS.items():
        cells, found_least = [], math.nan
        for budget in BUDGETS:
            try:
                plan = rental_plan(mix, offers_of(name), budget)
            except Infeasible as refusal:
                found_least = refusal.needed
                cells.append("-")
                continue
            found_least = plan.least.usd_per_h
            cells.append(f"{plan.mean_s / 60:.2f} ({minutes.get(budget, '-')})")
        rows.append([name, *cells, f"{found_least:.2f} ({least})"])
    columns = ["offered", *(f"{budget} USD/h, min" for budget in BUDGETS), "smallest, USD/h"]
    note = (
        "two kinds and spot: batches and sizes, which the notes do not state, are fitted: the round numbers that give "
        "the figures of the notes (in brackets). So this shows a consistent solver, and counts as no check"
    )
    table = StudyTable(title="Two kinds of GPU, and spot (fitted to the notes)", columns=columns, rows=rows)
    return Findings(checks=[], tables=[table], notes=[note])


def offers_of(row: str) -> list[Offer]:
    """Offers of a row of the table: assumed prices, spot at 35 % with a reclaim every three hours."""
    markets = ((Market.ON_DEMAND, 1.0, 0.0), (Market.SPOT, 0.35, 1 / 3))
    return [
        Offer(
            id=f"{gpu}:{market}",
            gpu=gpu,
            gpus_per_node=size,
            market=market,
            price=Price.from_usd_per_h(f"{usd * size * discount:.6f}"),
            hazard_per_h=hazard,
        )
        for gpu, (size, usd) in NODES.items()
        for market, discount, hazard in markets
        if (gpu in row or "both" in row) and (market is Market.ON_DEMAND or "spot" in row)
    ]


def measured_mix() -> list[Job]:
    """The 85 jobs at fixed batches on T4 and A100; needs the step times of Sia."""
    speeds = {model: _speed(model, batch) for model, (_, batch, _) in MIX.items()}
    # A reclaim costs 180 s and half of 300 s. Starts cost nothing here, so the 180 s are put into the checkpoints.
    return [
        Job(
            id=f"{model}{at}",
            submit_s=26_752.0 * (at > 0),
            work=samples,
            speed=speeds[model],
            max_gpus=16,
            model=model,
            checkpoint_every_s=2 * 180.0 + 300.0,
        )
        for model, (count, _, samples) in MIX.items()
        for at in range(count)
    ]


def _speed(model: str, batch: int) -> SpeedTable:
    """Samples per second with a fixed global batch and as few accumulation steps as memory allows."""
    rates: dict[str, dict[int, float]] = {}
    for gpu, (gpus_per_node, _) in NODES.items():
        step = measured_step_time(model, gpu, source="sia")
        limits = goodput_model(model, source="sia").limits[gpu]
        rates[gpu] = dict.fromkeys(range(1, 17), 0.0)
        for gpus in (1, 2, 4, 8, 12, 16):
            parts = max(1, math.ceil(batch / gpus / limits.max_local))
            with_sync, without = step.times(packed(gpus, gpus_per_node), np.array([batch / gpus / parts]))
            rates[gpu][gpus] = batch / float(with_sync[0] + (parts - 1) * without[0])
    return SpeedTable(rates=rates)
