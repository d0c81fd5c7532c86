"""Spot training for money: from the cheapest to the fastest, one fixed grid in hindsight, on demand, and deadlines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sublet.domain.units import SECONDS_PER_H
from sublet.perf.grids import SpotJob
from sublet.perf.parcae import ON_DEMAND_USD_PER_H, PARCAE_MODELS, SPOT_USD_PER_H, least_usd_per_sample
from sublet.policies.liveput.policy import Liveput
from sublet_lab.rides.bounds import constant, most_kept
from sublet_lab.rides.deadline import Punctual, certain_samples, least_usd, replay_punctual
from sublet_lab.rides.hindsight import Hindsight
from sublet_lab.rides.record import Record
from sublet_lab.rides.report import frontier_plot
from sublet_lab.rides.ride import BOOT_S, RideResult, Way, ride
from sublet_lab.rides.ways import way_of
from sublet_lab.studies.ratio import Ratio
from sublet_lab.studies.study import Check, Findings, StudyTable, at_least, at_most, within

VALUES = (1.1, 1.25, 1.5, 2.0, 4.0, 10.0)  # of a sample, as multiples of what it costs at the least
LOW_VALUE = 1.25
DEAREST = 32.0  # where samples are worth so much, it makes as many as it can
HALVINGS = 7
PER_DOLLAR = 1.3  # times parcae's samples per dollar where samples are worth little
SAVES = 1.25  # times fewer dollars than parcae for at least its samples
DRAWN = ("bert", "gpt-1.5b")
FLOORS = {  # samples per dollar by permanent instances on demand, hour lh: own re-run of Parcae's tables and costs
    "gpt-6.7b": {0: 1639, 2: 1287, 4: 1028, 8: 786, 16: 594},
    "gpt-1.5b": {0: 6377, 2: 4976, 4: 4089, 8: 3201, 16: 2332},
}
FLOOR_TOLERANCE = 0.03  # another way of looking ahead than that re-run's
LOW = "lh"  # the hour of few instances
MOST = 32
WITHIN_S = 8 * SECONDS_PER_H
SHARES = (0.3, 0.6, 0.9, 1.0, 1.1)  # of what liveput does in that time on spot alone
LOOSE = 0.6
ROUNDING = 1e-9

JobOf = Callable[[str], SpotJob]


def money_findings(job_of: JobOf, whole: Record, hours: Mapping[str, Record], *, quick: bool) -> Findings:
    """All of the above over the whole trace; `hours` are parts of it that share nothing, one of them `LOW`."""
    found = {model: _bought(job_of(model), whole, quick=quick) for model in (DRAWN if quick else PARCAE_MODELS)}
    by_hour = {model: [_over_parcae(job_of(model), hour) for hour in hours.values()] for model in found}
    floors = {model: _floors(job_of(model), hours[LOW]) for model in FLOORS}
    due = {model: _due(job_of(model), whole, quick=quick) for model in ("gpt-6.7b",)}
    return Findings(
        checks=[*_money_checks(found), *_hour_checks(by_hour), *_floor_checks(floors), *_due_checks(due)],
        tables=[
            _money_table(found),
            _hour_table(list(hours), by_hour),
            *_bound_tables(found, by_hour, job_of, whole, hours),
            _floor_table(floors),
            _due_table(due),
        ],
        plots={"Between cheapest and fastest, whole trace": frontier_plot({m: found[m].points() for m in DRAWN})},
        notes=[
            "value of a sample: multiples of what it costs at the least; the constant grid is the best in hindsight",
            "at 1.1 of the least cost next to nothing can be earned: a constant grid may keep a little more, unchecked",
            "the bound knows the market beforehand and changes for nothing: no policy meets a goal that is above it",
            "paths in hindsight pay the expected cost of changes: luck, or sight of the losses, may be cheaper",
            "dollars for parcae's samples have no interval: one trace, and of an hour alone a boot is too large a part",
            "deadlines: 8 hours; the bound is in hindsight, by the Lagrangian, and was not known then",
        ],
    )


# ---------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bought:
    least_usd: float
    runs: Mapping[str, RideResult]
    by_value: Mapping[float, RideResult]
    constant: Mapping[float, tuple[str, RideResult]]  # grid
    as_many: RideResult  # the cheapest that makes at least parcae's samples

    def kept(self, times: float, one: RideResult) -> float:
        return times * self.least_usd * one.samples - one.usd

    def points(self) -> dict[str, list[tuple[float, float]]]:
        """Samples, and dollars per million of them."""
        ours = sorted((one.samples, 1e6 * one.usd / one.samples) for one in self.by_value.values())
        fast = self.runs["liveput"]
        lines = {"liveput": [*ours, (fast.samples, 1e6 * fast.usd / fast.samples)]}
        parcae = self.runs["parcae"]
        grids = {grid: (one.samples, 1e6 * one.usd / one.samples) for grid, one in self.constant.values()}
        return (
            lines
            | {"parcae": [(parcae.samples, 1e6 * parcae.usd / parcae.samples)]}
            | {"constant grids": sorted(grids.values())}
        )


def _bought(job: SpotJob, whole: Record, *, quick: bool) -> _Bought:
    least = least_usd_per_sample(job)
    rivals = _ConstantGrids(job, whole)
    by_value, best = {}, {}
    for times in (LOW_VALUE, 4.0) if quick else VALUES:
        by_value[times] = ride(job, Way(Liveput(times * least)), whole, boot_s=BOOT_S)
        best[times] = rivals.best(times * least)
    runs = {name: ride(job, way_of(name, job, whole), whole) for name in ("parcae", "liveput")}
    as_many = _as_many(job, whole, runs["parcae"].samples, least)
    return _Bought(least_usd=least, runs=runs, by_value=by_value, constant=best, as_many=as_many)


def _as_many(job: SpotJob, whole: Record, samples: float, least_usd: float) -> RideResult:
    """By the least worth of a sample, to a hundredth part or so, at which it makes this many."""
    low, high = 1.0, DEAREST
    found = ride(job, Way(Liveput(high * least_usd)), whole, boot_s=BOOT_S)
    for _ in range(HALVINGS):
        worth = (low * high) ** 0.5
        one = ride(job, Way(Liveput(worth * least_usd)), whole, boot_s=BOOT_S)
        if one.samples >= samples:
            high, found = worth, one
        else:
            low = worth
    return found


def _over_parcae(job: SpotJob, hour: Record) -> float:
    """Samples per dollar where samples are worth little."""
    ours = ride(job, Way(Liveput(LOW_VALUE * least_usd_per_sample(job))), hour, boot_s=BOOT_S)
    return ours.samples_per_usd / ride(job, way_of("parcae", job, hour), hour).samples_per_usd


def _hour_checks(by_hour: Mapping[str, Sequence[float]]) -> list[Check]:
    checks = []
    for model, times in by_hour.items():
        ratio = Ratio.of(times)
        label = f"{model}: samples per dollar over parcae's, mean of {len(times)} hours"
        checks.append(at_least(label, ratio.mean, PER_DOLLAR, off=ratio.off, unit="x"))
    return checks


def _hour_table(hours: Sequence[str], by_hour: Mapping[str, Sequence[float]]) -> StudyTable:
    rows = [[model, *(f"{each:.2f}" for each in times), str(Ratio.of(times))] for model, times in by_hour.items()]
    title = f"Samples per dollar over parcae's, a sample worth {LOW_VALUE:g} of what it costs at least, by hour"
    return StudyTable(title=title, columns=["model", *hours, "mean, 95 % interval"], rows=rows)


def _bound_tables(
    found: Mapping[str, _Bought],
    by_hour: Mapping[str, Sequence[float]],
    job_of: JobOf,
    whole: Record,
    hours: Mapping[str, Record],
) -> list[StudyTable]:
    """How near liveput is to the best path, which knows the market beforehand."""
    as_many, per_usd = [], []
    for model, one in found.items():
        job, parcae = job_of(model), one.runs["parcae"]
        bound = _in_hindsight(job, whole)
        best_usd, free_usd = bound.least_usd(parcae.samples), bound.least_usd_were_changes_free(parcae.samples)
        dollars = (parcae.usd, one.as_many.usd, best_usd, free_usd)
        as_many.append(
            [model, *(f"{usd:,.2f}" for usd in dollars), *(f"{parcae.usd / usd:.3f}" for usd in dollars[1:])]
        )
        over = one.by_value[LOW_VALUE].samples_per_usd / parcae.samples_per_usd
        bounds = _bounds(job, whole, parcae.samples_per_usd)
        per_usd.append([model, "whole", f"{over:.2f}", *(f"{each:.2f}" for each in bounds)])
        each = [_bounds_over_parcae(job, hour) for hour in hours.values()]
        means = (sum(all_hours) / len(all_hours) for all_hours in zip(*each, strict=True))
        ours = Ratio.of(by_hour[model]).mean
        per_usd.append([model, f"mean of {len(hours)} hours", f"{ours:.2f}", *(f"{mean:.2f}" for mean in means)])
    return [
        StudyTable(
            title="At least parcae's samples, whole trace: dollars, and how many times fewer than parcae's",
            columns=[
                "model",
                *("parcae", "liveput", "path in hindsight", "bound"),
                *("liveput, x", "path in hindsight, x", "bound, x"),
            ],
            rows=as_many,
        ),
        StudyTable(
            title=f"Samples per dollar over parcae's: at a worth of {LOW_VALUE:g}, and the most at any",
            columns=["model", "record", "liveput", "keeps most, in hindsight", "most at any, in hindsight"],
            rows=per_usd,
            texts=2,
        ),
    ]


def _bounds_over_parcae(job: SpotJob, hour: Record) -> tuple[float, float]:
    return _bounds(job, hour, ride(job, way_of("parcae", job, hour), hour).samples_per_usd)


def _bounds(job: SpotJob, record: Record, base: float) -> tuple[float, float]:
    """Samples per dollar over `base`, of the path that keeps most at the low worth, and of the one that has most."""
    bound, worth = _in_hindsight(job, record), LOW_VALUE * least_usd_per_sample(job)
    best = bound.best(worth)
    return best.samples / best.usd(worth) / base, bound.most_per_usd() / base


def _in_hindsight(job: SpotJob, record: Record) -> Hindsight:
    return Hindsight(job=job, record=record, usd_per_h=SPOT_USD_PER_H, boot_s=BOOT_S)


class _ConstantGrids:
    """One grid throughout, for each; those are run that could be the best, were their changes free."""

    def __init__(self, job: SpotJob, whole: Record) -> None:
        self._job, self._whole = job, whole
        self._runs: dict[int, RideResult] = {}

    def best(self, usd_per_sample: float) -> tuple[str, RideResult]:
        """In hindsight, at this worth of a sample."""
        most_C = most_kept(self._job, self._whole, usd_per_sample, SPOT_USD_PER_H)
        found, config = -float("inf"), 1
        for each in sorted(range(1, len(most_C)), key=lambda each: -most_C[each]):
            if most_C[each] <= found:
                break
            if each not in self._runs:
                self._runs[each] = ride(self._job, Way(constant(each)), self._whole, boot_s=BOOT_S)
            kept = usd_per_sample * self._runs[each].samples - self._runs[each].usd
            if kept > found:
                found, config = kept, each
        return "x".join(map(str, self._job.grids[config])), self._runs[config]


def _money_checks(found: Mapping[str, _Bought]) -> list[Check]:
    checks = [
        at_least(
            f"{model}: samples per dollar of parcae's, a sample worth {LOW_VALUE:g} of what it costs at least",
            found[model].by_value[LOW_VALUE].samples_per_usd / found[model].runs["parcae"].samples_per_usd,
            PER_DOLLAR,
            unit="x",
        )
        for model in found
    ]
    for model, one in found.items():
        parcae, fewer = one.runs["parcae"], one.runs["parcae"].usd / one.as_many.usd
        enough = one.as_many.samples >= parcae.samples
        label = f"{model}: parcae's dollars over those of liveput for at least its samples"
        checks.append(at_least(label, fewer if enough else 0.0, SAVES, unit="x"))
    for model, one in found.items():
        for times, ours in one.by_value.items():
            if times >= LOW_VALUE:
                ahead = one.kept(times, ours) / one.kept(times, one.constant[times][1]) - 1.0
                label = f"{model}: kept at value {times:g}, ahead of the best constant grid in hindsight"
                checks.append(at_least(label, 100.0 * ahead, -ROUNDING, unit="%"))
    return checks


def _money_table(found: Mapping[str, _Bought]) -> StudyTable:
    rows = []
    for model, one in found.items():
        base = one.runs["parcae"].samples_per_usd
        for name, done in {**one.runs, "liveput, as many as parcae": one.as_many}.items():
            rows.append([model, name, *_figures(done, base), "", "", ""])
        for times, done in one.by_value.items():
            grid, constant = one.constant[times]
            kept = (f"{one.kept(times, each):,.2f}" for each in (done, constant))
            rows.append([model, f"liveput, value {times:g}", *_figures(done, base), *kept, grid])
    columns = ["model", "policy", "samples", "USD", "samples per USD", "of parcae's", "kept, USD", "constant", "grid"]
    return StudyTable(title="Money, whole trace: the cheapest to the fastest", columns=columns, rows=rows, texts=2)


def _figures(one: RideResult, base: float) -> list[str]:
    return [
        f"{one.samples:,.0f}",
        f"{one.usd:,.2f}",
        f"{one.samples_per_usd:,.0f}",
        f"{one.samples_per_usd / base:.2f}",
    ]


# ---------------------------------------------------------------------- on demand


def _floors(job: SpotJob, low: Record) -> dict[int, tuple[float, float]]:
    """Samples and dollars with so many instances on demand all the time."""
    found = {}
    for floor in FLOORS[job.name]:
        have = tuple(min(MOST, each + floor) for each in low.capacity)
        before = tuple(min(MOST, each + floor) for each in low.before)
        done = ride(job, Way(Liveput()), Record(capacity=have, before=before))
        spot_h = sum(each - floor for each in have) / 60.0
        found[floor] = (done.samples, spot_h * SPOT_USD_PER_H + floor * len(have) / 60.0 * ON_DEMAND_USD_PER_H)
    return found


def _floor_checks(floors: Mapping[str, Mapping[int, tuple[float, float]]]) -> list[Check]:
    return [
        within(f"{model}/lh: samples per dollar, {floor} on demand", s / usd, of, FLOOR_TOLERANCE, prototype=of)
        for model, found in floors.items()
        for floor, (s, usd) in found.items()
        for of in (FLOORS[model][floor],)
    ]


def _floor_table(floors: Mapping[str, Mapping[int, tuple[float, float]]]) -> StudyTable:
    rows = [
        [model, str(floor), f"{samples:,.0f}", f"{usd:,.2f}", f"{samples / usd:,.0f}"]
        for model, found in floors.items()
        for floor, (samples, usd) in found.items()
    ]
    columns = ["model", "on demand", "samples", "USD", "samples per USD"]
    return StudyTable(
        title="Some instances on demand all the time, hour lh: they buy time, not samples per dollar",
        columns=columns,
        rows=rows,
    )


# ---------------------------------------------------------------------- deadlines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    plan: Punctual
    run: RideResult
    bound_usd: float


def _due(job: SpotJob, whole: Record, *, quick: bool) -> dict[float, _Due]:
    within = Record(capacity=whole.capacity[: int(WITHIN_S // whole.step_s)])
    usual, found = ride(job, Way(Liveput()), within).samples, {}
    for share in (LOOSE, 1.0) if quick else SHARES:
        samples = share * usual
        if samples > certain_samples(job, WITHIN_S):
            continue
        plan = Punctual(
            samples=samples, within_s=WITHIN_S, usd_per_h=SPOT_USD_PER_H, on_demand_usd_per_h=ON_DEMAND_USD_PER_H
        )
        found[share] = _Due(plan=plan, run=replay_punctual(job, plan, within), bound_usd=least_usd(job, within, plan))
    return found


def _due_checks(due: Mapping[str, Mapping[float, _Due]]) -> list[Check]:
    checks = []
    for model, found in due.items():
        done = min(one.run.samples / one.plan.samples for one in found.values())
        loose = max(one.run.on_demand_h for share, one in found.items() if share <= LOOSE)
        checks += [
            at_least(f"{model}: done by the deadline, the least of {len(found)}", 100.0 * done, 100.0, unit="%"),
            at_most(f"{model}: on demand where spot has time to spare", loose, 0.0, unit="instance-hours"),
        ]
    return checks


def _due_table(due: Mapping[str, Mapping[float, _Due]]) -> StudyTable:
    rows = [
        [
            model,
            f"{share:g}",
            f"{one.plan.samples:,.0f}",
            f"{100.0 * one.run.samples / one.plan.samples:.1f}",
            f"{one.run.usd:,.2f}",
            f"{one.run.on_demand_h:,.1f}",
            f"{one.bound_usd:,.2f}",
        ]
        for model, found in due.items()
        for share, one in found.items()
    ]
    columns = ["model", "of spot's pace", "samples wanted", "done, %", "USD", "on demand, h", "USD, bound"]
    return StudyTable(title="Deadlines of 8 hours", columns=columns, rows=rows)
