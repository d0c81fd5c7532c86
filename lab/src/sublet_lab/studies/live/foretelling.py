"""Scenarios that are foretold and then run: what the simulator said, with its interval, beside what happened."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sublet_lab.studies.live.known import WALK, WALK_QUICK, WIDTHS, Known, known_from_profiling
from sublet_lab.studies.live.predict import Draw, Foretold, foretell
from sublet_lab.studies.live.run import run_live
from sublet_lab.studies.live.scenarios import BOOT_S, SCENARIOS, SPEEDUP, Scenario
from sublet_lab.studies.study import Check, Findings, StudyTable, Tell, equals, within

GOAL = 0.15
DRAWS, REPEATS, PROFILE_S = 30, 3, 40.0
DRAWS_QUICK, REPEATS_QUICK, PROFILE_QUICK_S, PART_QUICK = 8, 1, 12.0, 0.4
QUICK = ("losses without notice",)  # of the scenarios: every process of a run takes seconds to start


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One scenario: what was foretold, and each time that it was run."""

    scenario: Scenario
    foretold: Foretold
    runs: tuple[Draw, ...]
    finished: int  # jobs, over all runs

    @property
    def makespan_s(self) -> float:
        """In the middle of the runs."""
        return statistics.median(run.makespan_s for run in self.runs)

    @property
    def usd(self) -> float:
        """In the middle of the runs."""
        return statistics.median(run.usd for run in self.runs)


def foretelling(quick: bool, tell: Tell) -> Findings:
    """Profile, foretell all, then run all."""
    scenarios = [each.shorter(PART_QUICK) for each in SCENARIOS if each.name in QUICK] if quick else SCENARIOS
    folder = Path(tempfile.mkdtemp(prefix="sublet-foretelling-"))
    try:
        seconds, walk = (PROFILE_QUICK_S, WALK_QUICK) if quick else (PROFILE_S, WALK)
        known = known_from_profiling(folder, seconds=seconds, walk=walk, tell=tell)
        foretold = []
        for scenario in scenarios:
            tell(f"foretold: {scenario.name}")
            foretold.append(foretell(scenario, known, DRAWS_QUICK if quick else DRAWS))
        repeats = REPEATS_QUICK if quick else REPEATS
        seen = [
            _seen(scenario, said, known, folder, repeats, tell)
            for scenario, said in zip(scenarios, foretold, strict=True)
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return told(seen, known)


def _seen(scenario: Scenario, said: Foretold, known: Known, folder: Path, repeats: int, tell: Tell) -> Seen:
    runs, finished = [], 0
    for number in range(repeats):
        state_dir = folder / f"{scenario.name.replace(' ', '-')}-{number}"
        settings = scenario.settings(state_dir)
        shutil.copytree(folder / "profiles", state_dir / "profiles")  # the live controller begins with it as well
        jobs = scenario.jobs(statistics.median(known.frictions.shrinks))
        live = run_live(settings, jobs, lambda text: tell(f"{scenario.name}: {text}"))
        runs.append(Draw(live.makespan_s, live.usd))
        finished += sum(view["phase"] == "finished" for view in live.views)
    return Seen(scenario=scenario, foretold=said, runs=tuple(runs), finished=finished)


def told(seen: Sequence[Seen], known: Known) -> Findings:
    """As tables and checks."""
    checks: list[Check] = []
    rows = []
    for each in seen:
        name, said = each.scenario.name, each.foretold
        checks += [
            equals(f"{name}: jobs finished", each.finished, len(each.scenario.arrivals) * len(each.runs)),
            within(f"{name}: makespan, live over foretold", each.makespan_s / said.makespan_s, 1.0, GOAL),
            within(f"{name}: dollars, live over foretold", each.usd / said.usd, 1.0, GOAL),
        ]
        times, usd = [run.makespan_s for run in each.runs], [run.usd for run in each.runs]
        rows += [
            [name, "makespan s", *_cells(said.makespan_s, said.makespan_range, each.makespan_s, times, ",.0f")],
            [name, "USD", *_cells(said.usd, said.usd_range, each.usd, usd, ".4f")],
        ]
    table = StudyTable(
        title=f"Foretold before it ran (80 % of the draws), and run (least to most of {len(seen[0].runs)})",
        columns=["scenario", "figure", "foretold", "80 %", "live", "least-most", "off by"],
        rows=rows,
        texts=2,
    )
    notes = [f"a wall second is {SPEEDUP:g} s of cloud time; goal of the foretold: {GOAL:.0%}"]
    if left_out := [each.name for each in SCENARIOS if each.name not in {one.scenario.name for one in seen}]:
        notes.append(f"not run: {', '.join(left_out)}; without --quick all are, whole and {REPEATS} times")
    return Findings(checks=checks, tables=[table, _who_knew(known)], notes=notes)


def _cells(said: float, between: tuple[float, float], live: float, all_live: Sequence[float], form: str) -> list[str]:
    return [
        f"{said:{form}}",
        f"{between[0]:{form}}-{between[1]:{form}}",
        f"{live:{form}}",
        f"{min(all_live):{form}}-{max(all_live):{form}}",
        f"{live / said - 1.0:+.1%}",
    ]


def _who_knew(known: Known) -> StudyTable:
    seen = known.frictions
    steps = ", ".join(f"{row.gpus} x {row.samples}: {1e3 * row.step_s:.0f}" for row in known.rows)
    rows = [
        ["step time, ms (workers x samples)", steps, f"measured before, by the profile; worker counts {WIDTHS}"],
        ["a node's start, wall s", _range(seen.boots), "measured before, in a run that only regroups"],
        ["submission to first order, wall s", _range(seen.plans), "measured before, in the same"],
        ["a job's start, wall s", _range(seen.starts), "measured before, in the same"],
        ["a wider group, wall s", _range(seen.grows), "measured before, in the same"],
        ["a narrower group, wall s", _range(seen.shrinks), "measured before, in the same; taken for losses too"],
        ["boot that the box pretends, s", f"{BOOT_S:g}", "a setting"],
        ["arrivals, sizes, supply, notice, prices", "", "the question: both worlds are told"],
        ["sleep of a step, late workers", "", "the script alone"],
        ["which nodes the market takes", "", "none: seeds of the draws"],
    ]
    return StudyTable(title="Knowledge before the runs", columns=["what", "value", "known from"], rows=rows, texts=3)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f} ({len(values)} times)"
