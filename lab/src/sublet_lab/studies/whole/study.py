"""The whole beside its parts: forty jobs of mixed kinds, one budget, `price` against the published systems in silos.

Everybody is told the same and is run at several budgets. Runs are compared at equal dollars: what `price` spent is
looked up on the lower envelope of each rival's own (dollars, mean hours).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from scipy.special import stdtrit

from sublet.domain.units import SECONDS_PER_H
from sublet_lab.studies.fleet.study import hours_at
from sublet_lab.studies.study import Findings, Study, StudyTable, Tell, at_least, at_most
from sublet_lab.studies.whole.rivals import ABLATIONS, PUBLISHED, PURE, WHOLE, Rival, RivalOutcome, outcome_of
from sublet_lab.studies.whole.scene import CASES, ON_DEMAND_USD_PER_H, WholeCase, gpu_hours, jobs_of

BUDGETS = (0.35, 0.5, 0.75, 1.1)  # of what the load costs on demand, one GPU after another
BEYOND = (0.2, *BUDGETS, 1.6, 2.4)  # asked of rivals, so that their lines cover the dollars of price
SEEDS = (1, 2, 3, 4, 5)  # the published workloads of Pollux
AIM = 25.0  # percent of the time of the best rival
CONFIDENCE = 0.95

NOTES = (
    "40 jobs: every fourth of a workload of Pollux, measured on T4s (nodes count as such), and two of Parcae's models",
    "all are told the same: speeds, sizes and arrivals; a policy that asks for less ignores the rest",
    "published systems share budget and spot nodes by the GPU-hours of their jobs",
    "Parcae is stood in for by our liveput, which is no slower (study liveput)",
    "a budget is an aim per hour for boa and price, a cap for the others; only dollars spent are compared",
    "DeepVM plans one job at a time and is left out (study deepvm)",
)

Key = tuple[str, str, int, float]  # rival, trace, seed, budget


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    cases: Sequence[WholeCase]
    seeds: Sequence[int]
    budgets: Sequence[float]
    beyond: Sequence[float]

    def keys(self) -> list[Key]:
        """Every run, the long ones first."""
        return [
            (rival.name, case.trace, seed, budget)
            for rival in RIVALS.values()
            for budget in (self.budgets if rival.name == WHOLE else self.beyond)
            for case in self.cases
            for seed in self.seeds
        ]


RIVALS: Mapping[str, Rival] = {rival.name: rival for rival in (*ABLATIONS, *PURE, *PUBLISHED)}
FULL = Scale(CASES, SEEDS, BUDGETS, BEYOND)
QUICK = Scale(CASES[:1], SEEDS[:1], (0.5, 1.1), (0.35, 1.1, 1.6))


def _one(key: Key) -> tuple[Key, RivalOutcome]:
    name, trace, seed, budget = key
    case = next(case for case in CASES if case.trace == trace)
    load = sum(gpu_hours(job) for job in jobs_of(seed)) / (max(job.submit_s for job in jobs_of(seed)) / SECONDS_PER_H)
    return key, outcome_of(RIVALS[name], case, seed, budget * load * ON_DEMAND_USD_PER_H)


def _all(scale: Scale, tell: Tell) -> dict[Key, RivalOutcome]:
    keys = scale.keys()
    found: dict[Key, RivalOutcome] = {}
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        for done in as_completed([pool.submit(_one, key) for key in keys]):
            key, outcome = done.result()
            found[key] = outcome
            tell(f"{len(found)} of {len(keys)} runs: {key[0]} on {key[1]}")
    return found


def _mean_h(outcome: RivalOutcome) -> float:
    return fmean(outcome.hours.values()) if outcome.hours else math.inf


def faster(found: Mapping[Key, RivalOutcome], scale: Scale, names: Sequence[str]) -> list[float]:
    """By how many percent `price` is faster than the best of these at its own dollars: one figure a trace and seed."""
    gains = []
    for case in scale.cases:
        for seed in scale.seeds:
            lines = []
            for name in names:
                runs = [found[name, case.trace, seed, budget] for budget in scale.beyond]
                lines.append([(run.usd, _mean_h(run)) for run in runs if run.hours])
            ratios = []
            for budget in scale.budgets:
                ours = found[WHOLE, case.trace, seed, budget]
                best = min((hours_at(line, ours.usd) for line in lines if line), default=math.inf)
                if math.isfinite(best):
                    ratios.append(_mean_h(ours) / best)
            if ratios:
                gains.append(100.0 * (1.0 - math.exp(fmean(np.log(ratios)))))
    return gains


def _interval(values: Sequence[float]) -> float:
    """Half of the interval of the mean, by Student."""
    if len(values) < 2:
        return math.nan
    return float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(len(values))


def _run(quick: bool, tell: Tell) -> Findings:
    scale = QUICK if quick else FULL
    found = _all(scale, tell)
    groups = {
        "the best published, each on its share": [rival.name for rival in PUBLISHED],
        "all spot": ["all spot"],
        "all on demand": ["all on demand"],
        "the best of all these": [rival.name for rival in (*PUBLISHED, *PURE)],
        **{rival.name: [rival.name] for rival in ABLATIONS if rival.name != WHOLE},
    }
    gains = {group: faster(found, scale, names) for group, names in groups.items()}
    rows = [
        [group, f"{fmean(each):.1f}", f"{_interval(each):.1f}", f"{min(each):.1f}", f"{max(each):.1f}"]
        for group, each in gains.items()
        if each
    ]
    compared = StudyTable(
        title="By how many percent price is faster at equal dollars, one figure a trace and seed",
        columns=["than", "mean", "+- 95 %", "least", "most"],
        rows=rows,
    )
    unfinished = sum(not found[key].hours for key in found if key[0] == WHOLE)
    best = gains["the best of all these"]
    return Findings(
        checks=[
            at_least("price faster than the best of all others, mean", fmean(best), AIM, off=_interval(best), unit="%"),
            at_most("runs of price in which a job never ended", unfinished, 0.0, unit="runs"),
        ],
        tables=[compared, *(_lines(found, scale, case) for case in scale.cases)],
        notes=NOTES,
    )


def _lines(found: Mapping[Key, RivalOutcome], scale: Scale, case: WholeCase) -> StudyTable:
    """Means over seeds, of each rival and budget."""
    rows = []
    for rival in RIVALS.values():
        for budget in scale.budgets if rival.name == WHOLE else scale.beyond:
            runs = [found[rival.name, case.trace, seed, budget] for seed in scale.seeds]
            ended = [run for run in runs if run.hours]
            if not ended:
                continue
            cells = (
                fmean(run.usd for run in ended),
                fmean(map(_mean_h, ended)),
                fmean(float(np.percentile(list(run.hours.values()), 99)) for run in ended),
                fmean(run.losses for run in ended),
                fmean(run.paused_gpu_h for run in ended),
            )
            never = len(runs) - len(ended)
            rows.append([rival.name, rival.knows, f"{budget:g}", *(f"{cell:.2f}" for cell in cells), f"{never or ''}"])
    columns = ["who", "asks for", "budget", "USD", "mean, h", "p99, h", "nodes lost", "GPU-h paused", "never ended"]
    return StudyTable(
        title=f"{case.trace}: means over {len(scale.seeds)} workloads", columns=columns, rows=rows, texts=2
    )


STUDY = Study(
    name="whole", title="Jobs of mixed kinds on both markets with one budget, beside each system alone", run=_run
)
