"""One job with a deadline over regions: what it costs over the best in hindsight, with all asking paid for.

All policies run through the kernel in a cloud that does not tell its supply: a request is refused, which is free, or
gets a node, of which a minute is paid at least. Prices are public. The best in hindsight knows the whole record, and is
exact.

| set | scene | hours of the record | used for |
|---|---|---|---|
| tuning | v100 | 0 to 288 | constants of `regions` |
| validation | v100 | 288 to 480 | a look whether they hold, before the others were run |
| reported | v100 | 480 to 1092 | claims |
| reported | h100 | all 241 | claims; nothing was chosen on this trace |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from sublet.domain.plan import Policy
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import MissingData
from sublet.policies.regions.policy import Regions
from sublet_lab.studies.regions.ride import Outcome, best_usd, ride
from sublet_lab.studies.regions.rivals import GreedySpot, OnDemand, UniformProgress
from sublet_lab.studies.regions.scene import Scene, Window, gcp_h100, v100_2023
from sublet_lab.studies.regions.skynomad import SkyNomad
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_least, at_most, equals

OURS = "regions"
POLICIES: Mapping[str, Callable[[], Policy]] = {  # a fresh one for every window: SkyNomad's remembers
    OURS: Regions,
    "skynomad (rebuilt)": SkyNomad,
    "skynomad, no probes": lambda: SkyNomad(probes=False),
    "uniform progress": UniformProgress,
    "greedy spot": GreedySpot,
    "on demand": OnDemand,
}
GOAL = 1.05
PUBLISHED = {"h100": 1.11, "v100": 1.12}  # SkyNomad over its optimum (section 5.2.2 of the paper)
WORK_H, RATIOS = 24.0, (1.25, 1.5, 2.0)
LONG_H, LONG_RATIO = 100.0, 1.5  # the job that the paper has in its simulations


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Hours of a scene, and what they are for."""

    name: str
    scene: Callable[[], Scene]
    from_h: float
    to_h: float
    every_h: float = 24.0  # a window begins
    is_reported: bool = False


SHIPPED = Set(name="h100", scene=gcp_h100, from_h=0.0, to_h=241.0, every_h=12.0, is_reported=True)
SETS = (
    Set(name="tuning", scene=v100_2023, from_h=0.0, to_h=288.0),
    Set(name="validation", scene=v100_2023, from_h=288.0, to_h=480.0),
    Set(name="v100", scene=v100_2023, from_h=480.0, to_h=1092.0, is_reported=True),
    SHIPPED,
)


def windows_of(part: Set, *, work_h: float, ratio: float, every_h: float) -> list[Window]:
    """So many hours of work within `ratio` as many, a window every so many hours, none beyond the end of the set."""
    scene = part.scene()
    tick_s = scene.tick_s
    work_s, within_s = (
        round(hours * SECONDS_PER_H / scene.unit_s) * scene.unit_s for hours in (work_h, work_h * ratio)
    )
    last_h = part.to_h - within_s / SECONDS_PER_H
    starts_h = [part.from_h + every_h * at for at in range(math.floor((last_h - part.from_h) / every_h) + 1)]
    return [
        Window(
            scene=scene,
            begins_s=math.ceil(start_h * SECONDS_PER_H / tick_s) * tick_s,
            work_s=work_s,
            within_s=within_s,
        )
        for start_h in starts_h
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy on the windows of a set."""

    policy: str
    over_best: tuple[float, ...]
    outcomes: tuple[Outcome, ...]
    best_usd: tuple[float, ...]
    side_by_side: float  # so many windows fit into the set: those that overlap tell little more

    @property
    def mean(self) -> float:
        """The mean of cost over the best in hindsight."""
        return fmean(self.over_best)

    @property
    def half_width(self) -> float:
        """Half of the interval of cost over the best in hindsight."""
        return half_width(self.over_best, self.side_by_side)

    def over(self, ours: Row) -> tuple[float, float]:
        """Its cost over that of another, window by window: the mean, and half of its interval."""
        ratios = [mine.usd / other.usd for mine, other in zip(self.outcomes, ours.outcomes, strict=True)]
        return fmean(ratios), half_width(ratios, self.side_by_side)

    @property
    def in_time(self) -> float:
        """Share of the windows."""
        return fmean(each.in_time for each in self.outcomes)

    def share(self, what: Callable[[Outcome], float]) -> float:
        """The share of the best cost, on average."""
        return fmean(what(each) / best for each, best in zip(self.outcomes, self.best_usd, strict=True))


def half_width(values: Sequence[float], side_by_side: float) -> float:
    """Half of the 95 % interval of the mean, by Student, as if only windows side by side counted; NaN for one."""
    count = min(len(values), math.floor(side_by_side))
    if count < 2:
        return math.nan
    return float(student.ppf(0.975, count - 1)) * stdev(values) / math.sqrt(count)


def rows_of(windows: Sequence[Window], part: Set, policies: Mapping[str, Callable[[], Policy]]) -> list[Row]:
    """Every policy on every window."""
    best = tuple(best_usd(window) for window in windows)
    found = []
    for name, make in policies.items():
        outcomes = tuple(ride(window, make()) for window in windows)
        found.append(
            Row(
                policy=name,
                over_best=tuple(each.usd / least for each, least in zip(outcomes, best, strict=True)),
                outcomes=outcomes,
                best_usd=best,
                side_by_side=max(1.0, (part.to_h - part.from_h) * SECONDS_PER_H / windows[0].within_s),
            )
        )
    return found


def sets_here() -> tuple[list[Set], list[str]]:
    """Those whose record is here, and a note on each of the others."""
    here, notes = [], []
    for part in SETS:
        try:
            part.scene()
            here.append(part)
        except MissingData as missing:
            notes.append(f"set {part.name!r} is left out: {missing.path} is not here; 'sublet data' says how to get it")
    return here, notes


def _run(quick: bool, tell: Tell) -> Findings:
    """In a quick run a few windows of the record that is shipped, of a shorter job."""
    tables, rows = [], {}
    here, left_out = ([SHIPPED], []) if quick else sets_here()
    for note in left_out:
        tell(note)
    for part in here:
        cases = [(6.0, 1.5, 108.0)] if quick else [(WORK_H, ratio, part.every_h) for ratio in RATIOS]
        if part.is_reported and not quick:
            cases.append((LONG_H, LONG_RATIO, 2.0 * part.every_h))
        for work_h, ratio, every_h in cases:
            tell(f"{part.name}: {work_h:g} h of work within {ratio:g} times as long")
            windows = windows_of(part, work_h=work_h, ratio=ratio, every_h=every_h)
            rows[part.name, work_h, ratio] = rows_of(windows, part, POLICIES)
            tables.append(_table(part, work_h, ratio, rows[part.name, work_h, ratio]))
    checks = [check for part in SETS if part.is_reported for check in _checks(part, rows)]
    return Findings(checks=checks, tables=tables, notes=[*NOTES, *left_out])


def _table(part: Set, work_h: float, ratio: float, rows: Sequence[Row]) -> StudyTable:
    kind = "reported" if part.is_reported else part.name
    job = f"{work_h:g} h of work within {work_h * ratio:g} h, {len(rows[0].outcomes)} windows"
    return StudyTable(
        title=f"{kind} set, {part.scene().name}: {job}",
        columns=["policy", "cost / best", "+-", "worst", "in time", "starts", "egress / best", "probes / best"],
        rows=[
            [
                row.policy,
                f"{row.mean:.3f}",
                "-" if math.isnan(row.half_width) else f"{row.half_width:.3f}",
                f"{max(row.over_best):.2f}",
                f"{row.in_time:.0%}",
                f"{fmean(each.starts for each in row.outcomes):.1f}",
                f"{row.share(lambda each: each.egress_usd):.3f}",
                f"{row.share(lambda each: each.probes_usd):.3f}",
            ]
            for row in rows
        ],
    )


def _checks(part: Set, rows: Mapping[tuple[str, float, float], Sequence[Row]]) -> list[Check]:
    of_set = [found for (name, _, _), found in rows.items() if name == part.name]
    if not of_set:
        return []
    ours = [row for found in of_set for row in found if row.policy == OURS]
    mean, off = _all_jobs([(row.mean, row.half_width) for row in ours])
    checks = [
        equals(f"{part.name}: deadlines kept", fmean(row.in_time for row in ours), 1.0),
        at_most(f"{part.name}: cost / best", mean, GOAL, published=PUBLISHED[part.name], off=off),
    ]
    for name in POLICIES:
        if name != OURS:
            theirs = [row for found in of_set for row in found if row.policy == name]
            times, off = _all_jobs([row.over(own) for row, own in zip(theirs, ours, strict=True)])
            checks.append(at_least(f"{part.name}: {name} / {OURS}", times, 1.0, off=off))
    return checks


def _all_jobs(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Means, and of their intervals the mean: of the same hours, so that more jobs in them are not more windows."""
    known = [off for _, off in found if not math.isnan(off)]
    return fmean(each for each, _ in found), fmean(known) if known else math.nan


NOTES = (
    "a request that is refused is free, a node that comes is paid for a minute at least; moving costs 1 USD of egress",
    "skynomad and uniform progress are rebuilt from the papers' text, and have the same last call as regions",
    "the published figure is SkyNomad's own, on other windows of the same records; it does not say if probes are in it",
    "intervals: 95 %, by Student's t with as many windows as fit side by side into a set, whole; none where one does",
    "the interval of cost / best is the mean of those of its jobs that have one: they run in the same hours",
    "a rival's cost over ours is the mean over windows, with an interval of the same kind",
)

STUDY = Study(
    name="regions", title="one job with a deadline over regions: SkyNomad, Uniform Progress and the best", run=_run
)
