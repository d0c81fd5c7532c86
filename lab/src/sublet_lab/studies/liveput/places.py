"""Spot training elsewhere: other traces in full, several zones at a time, and losses that are announced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.market.traces import load_trace
from sublet.perf.grids import SpotJob
from sublet.perf.parcae import PARCAE_MODELS, SPOT_USD_PER_H
from sublet_lab.rides.many_zones import CHOICES, ZonedRunResult, have_of, measured_zoned_job, run_in_zones
from sublet_lab.rides.record import Record
from sublet_lab.rides.ride import ride
from sublet_lab.rides.ways import way_of
from sublet_lab.rides.zones import Have, Links
from sublet_lab.studies.study import Check, Findings, StudyTable, at_least, within

WHOLE_TRACES = {"skynomad-h100": 600.0, "skypilot-v100-2023-08": 300.0}  # seconds between two of its own records
SKYPILOT, SKYNOMAD = "skypilot-v100-2023-08", "skynomad-h100"
ENOUGH = 12  # instances, what gpt-6.7b needs
HAVE_ENOUGH = {"us-east-2b": 0.52, "us-west-2a": 0.34, "us-west-2c": 0.33}  # share of the time
BEST_OF_THREE, ALL_EMPTY = 0.82, 0.129
TWO_DIGITS = 0.015  # relative, of shares given with two digits
QUICK_TICKS = 600
NOTICE_S = (0.0, 25.0, 30.0, 120.0)  # Parcae's replay, what Google and what Amazon document
KEPT_WITH_NOTICE = 99.5  # percent


# ---------------------------------------------------------------------- notice


def notice_findings(job_of: Callable[[str], SpotJob], parts: Mapping[str, Record], *, quick: bool) -> Findings:
    """Percent of the oracle, which has no notice."""
    rows, checks = [], []
    for model in ("gpt-1.5b", "gpt-6.7b") if quick else PARCAE_MODELS:
        job, least = job_of(model), np.inf
        for hour, record in parts.items():
            if quick and hour != "lh":
                continue
            best = ride(job, way_of("oracle", job, record), record).samples
            liveput = way_of("liveput", job, record)
            ours = [ride(job, liveput, record, notice_s=notice_s).samples for notice_s in NOTICE_S]
            least = min(least, *(100.0 * each / ours[0] for each in ours))
            rows.append([model, hour, *(f"{100.0 * each / best:.2f}" for each in ours)])
        label = f"{model}: with notice, of what it makes without, the least of any hour and notice"
        checks.append(at_least(label, float(least), KEPT_WITH_NOTICE, unit="%"))
    columns = ["model", "hour", *(f"{s:g} s" for s in NOTICE_S)]
    title = "Losses announced: liveput in percent of the oracle without notice"
    return Findings(checks=checks, tables=[StudyTable(title=title, columns=columns, rows=rows, texts=2)])


# ---------------------------------------------------------------------- zones


def middle_zones(zones: Sequence[str], have_T: Sequence[Have], count: int) -> tuple[list[str], list[Have]]:
    """So many zones with neither the most instances nor the fewest: in some of the others nothing ever happens."""
    order = np.argsort(np.array(have_T).mean(axis=0), kind="stable").tolist()
    start = (len(zones) - count) // 2
    kept = sorted(order[start : start + count])
    return [zones[each] for each in kept], [tuple(have[each] for each in kept) for have in have_T]


def zones_findings(*, quick: bool) -> Findings:
    """Three zones of SkyPilot's, five of SkyNomad's."""
    checks: list[Check] = []
    rows: list[list[str]] = []
    zones, have_T = have_of([load_trace(SKYPILOT)], step_s=WHOLE_TRACES[SKYPILOT])
    checks += _shares(zones, np.array(have_T))
    places = [(SKYPILOT, zones, have_T)]
    if not quick:
        zones, have_T = have_of([load_trace(SKYNOMAD)], step_s=WHOLE_TRACES[SKYNOMAD])
        places.append((SKYNOMAD, *middle_zones(zones, have_T, 5)))
    for trace, names, every_T in places:
        have_T = every_T[:QUICK_TICKS] if quick else every_T
        for model in ("gpt-6.7b",) if quick else ("gpt-6.7b", "gpt-1.5b"):
            checks += _one_place(trace, model, names, have_T, rows)
    columns = [
        "trace",
        "model",
        "zones",
        "policy",
        "samples",
        "of the oracle",
        "samples per USD",
        "moves",
        "suspended, h",
    ]
    notes = [
        "between zones of a region 0.9 GB/s, between regions 1 Gb/s (assumed), USD 0.02 per GB; 45 s to boot elsewhere",
        "gradients summed across zones at every step cost more than instances on demand would: such grids are left out",
    ]
    table = StudyTable(title="Several zones, chosen together with the grid", columns=columns, rows=rows, texts=4)
    return Findings(checks=checks, tables=[table], notes=notes)


def _shares(zones: Sequence[str], have_TZ: np.ndarray[tuple[int, int], np.dtype[np.int_]]) -> list[Check]:
    enough_TZ = have_TZ >= ENOUGH
    checks = []
    for place, zone in enumerate(zones):
        share, of = float(enough_TZ[:, place].mean()), HAVE_ENOUGH[zone]
        checks.append(within(f"{zone}: share of time with {ENOUGH} instances", share, of, TWO_DIGITS))
    best, empty = float(enough_TZ.any(axis=1).mean()), float((have_TZ.max(axis=1) == 0).mean())
    return [
        *checks,
        within("best of three zones", best, BEST_OF_THREE, TWO_DIGITS),
        within("all three zones empty", empty, ALL_EMPTY, TWO_DIGITS),
    ]


def _one_place(
    trace: str, model: str, zones: Sequence[str], have_T: Sequence[Have], rows: list[list[str]]
) -> list[Check]:
    """Every way to choose in all zones, and liveput in each alone."""
    step_s = WHOLE_TRACES[trace]
    together = measured_zoned_job(model, zones, have_T, step_s=step_s, links=Links())
    found = {name: run_in_zones(together, name, have_T, usd_per_h=SPOT_USD_PER_H) for name in CHOICES}
    best = found["oracle"].samples
    for name, one in found.items():
        rows.append([trace, model, "all", name, *_row(one, best)])
    alone = []
    for place, zone in enumerate(zones):
        only_T: list[Have] = [(have[place],) for have in have_T]
        here = measured_zoned_job(model, [zone], only_T, step_s=step_s, links=Links())
        alone.append(run_in_zones(here, "liveput", only_T, usd_per_h=SPOT_USD_PER_H))
        rows.append([trace, model, zone, "liveput", *_row(alone[-1], best)])
    where, ours = f"{trace}/{model}", found["liveput"].samples
    single = max(one.samples for one in alone)
    return [
        at_least(f"{where}: liveput in all zones, percent of the oracle", 100.0 * ours / best, 98.0, unit="%"),
        at_least(f"{where}: all zones ahead of the best single one", 100.0 * ours / single - 100.0, 0.0, unit="%"),
        at_least(
            f"{where}: liveput ahead of greedy-live", 100.0 * ours / found["greedy-live"].samples - 100.0, 0.0, unit="%"
        ),
    ]


def _row(one: ZonedRunResult, best: float) -> list[str]:
    shares = (f"{one.samples:,.0f}", f"{100.0 * one.samples / best:.2f}", f"{one.samples_per_usd:,.0f}")
    return [*shares, f"{one.moves}", f"{one.suspended_s / SECONDS_PER_H:,.1f}"]
