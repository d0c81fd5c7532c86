"""Theory against simulation: what a budget buys by the formula, and what it buys when jobs really come and go."""

from __future__ import annotations

import math

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.sim.simulator import simulate
from sublet_lab.rivals.boa_ideal import BoaIdeal
from sublet_lab.studies.boa.cases import CASES, gpu_cloud
from sublet_lab.studies.study import Check, Findings, StudyTable, Tell, at_most, equals, within

BUDGETS = {"A": (1.5, 3.0), "B": (16.0, 24.0), "C": (22.0, 30.0, 40.0)}
CONFIDENT = 2.576  # standard errors either way: 99 %


def golden() -> Findings:
    """The example of the first paper, exactly: b = 2 gives worker counts 6 and 9 and a mean time of a third."""
    case = CASES["A"]
    found = case.frontier().at(2.0)
    widths = [case.widths[column] for column in found.poorer.tolist()]
    checks = [
        equals("golden example: width of the Amdahl type", widths[0], 6, published=6, unit="GPUs"),
        equals("golden example: width of the square-root type", widths[1], 9, published=9, unit="GPUs"),
        within("golden example: mean time", found.jobs / case.per_h, 1 / 3, 1e-9, published=1 / 3, unit="h"),
    ]
    return Findings(checks=checks)


def theory(quick: bool, tell: Tell) -> Findings:
    """The cases A, B and C: budget within 1 %, mean time within 99 % confidence, and at the exact bound of the run."""
    count = 500 if quick else 5_000
    checks: list[Check] = []
    rows = []
    for key, budgets in BUDGETS.items():
        case, line = CASES[key], CASES[key].frontier()
        prototype = dict(case.prototype)
        jobs = case.jobs(count, np.random.default_rng(7))
        hours = case.hours(count)
        for budget in budgets:
            tell(f"theory against simulation, case {key}, {budget:g} GPUs")
            expected_h = line.at(budget).jobs / case.per_h
            run = simulate(jobs, BoaIdeal(), gpu_cloud(budget), expected=case.forecast(), keep_segments=False)
            times_h = np.array([row.completion_s for row in run.record.jobs.values()]) / SECONDS_PER_H
            mean_h, error_h = float(times_h.mean()), float(times_h.std() / math.sqrt(len(times_h)))
            spent = run.metrics.usd / hours
            name = f"case {key}, {budget:g} GPUs"
            checks.append(within(f"{name}: GPUs used", spent, budget, 0.01, unit="GPUs"))
            checks.append(
                at_most(
                    f"{name}: mean time off theory, standard errors",
                    abs(mean_h - expected_h) / error_h,
                    CONFIDENT,
                )
            )
            uniform_h = case.uniform(budget)
            rows.append(
                [
                    case.name,
                    f"{budget:g}",
                    f"{spent:.3f}",
                    "-" if budget not in prototype else f"{prototype[budget]:.4f}",
                    f"{expected_h:.4f}",
                    f"{mean_h:.4f}",
                    f"{uniform_h:.4f}",
                    f"{uniform_h / expected_h:.2f}x",
                ]
            )
    columns = ["case", "budget", "GPUs used", "prototype, h", "theory, h", "simulated, h", "one width, h", "gain"]
    table = StudyTable(title="Theory against simulation", columns=columns, rows=rows)
    note = (
        "case A is that of the design to the digit; of case B the design states no curves, so the six types are ours; "
        "of case C it states four rows of the measured tables, of which the three late ones are used"
    )
    return Findings(checks=checks, tables=[table], notes=[note])
