"""Training on spot instances: Parcae's own numbers again, and what is left to gain once decisions follow events.

Policies are those of the kernel, driven by the simulator; parcae decides at its ticks, before it sees. Bamboo and the
deadlines alone are replays of their own. Everything runs over the trace on which Parcae was evaluated (p3.2xlarge, 11.4
hours; four of its hours and all of it), under its own tables and migration costs. The figures to reproduce are what its
published code prints; the random part of it is its forecaster. The oracle is one exact program over the true trace,
with a suspended state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from sublet.market.traces import load_trace
from sublet.perf.grids import SpotJob
from sublet.perf.migration import smoothed
from sublet.perf.parcae import PARCAE_MODELS, measured_job, parcae_rates
from sublet.solve.expectation import ExpectedMoves, Loss, expected_moves
from sublet_lab.rides.bamboo import replay_bamboo
from sublet_lab.rides.record import Record, capacity_of, record_of
from sublet_lab.rides.ride import RideResult, ride
from sublet_lab.rides.ways import WAYS, way_of
from sublet_lab.studies.liveput.forecasts import forecast_checks
from sublet_lab.studies.liveput.losses import losses_findings
from sublet_lab.studies.liveput.money import money_findings
from sublet_lab.studies.liveput.places import WHOLE_TRACES, notice_findings, zones_findings
from sublet_lab.studies.ratio import Ratio
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_least, at_most, equals, within

TRACE, ELSEWHERE = "bamboo-p3", "bamboo-gcp"
HOURS = {"hh": (330, 390), "hl": (90, 150), "lh": (480, 540), "ll": (600, 660), "full": (0, 683)}  # minutes
# High or low availability, dense or sparse preemptions.
IDEAL = {
    "bert": {"hh": 1_806_875, "hl": 1_911_813, "lh": 1_288_288, "ll": 1_213_433},
    "resnet152": {"hh": 9_288_690, "hl": 9_906_700, "lh": 6_286_382, "ll": 5_898_260},
    "gpt-1.5b": {"hh": 143_547, "hl": 149_502, "lh": 108_433, "ll": 103_787},
    "gpt-6.7b": {"hh": 36_835, "hl": 38_663, "lh": 27_954, "ll": 28_315},
}
CHECKPOINT = {
    "bert": {"hh": 1_603_703, "hl": 1_775_196, "lh": 1_093_674, "ll": 1_186_339},
    "resnet152": {"hh": 8_416_278, "hl": 9_300_482, "lh": 5_464_472, "ll": 5_789_077},
    "gpt-1.5b": {"hh": 107_545, "hl": 124_158, "lh": 73_255, "ll": 98_820},
    "gpt-6.7b": {"hh": 15_195, "hl": 25_551, "ll": 24_173},  # lh: it crashes below 12 instances
}
TRUTH = {
    "bert": {"hh": 1_743_633, "hl": 1_871_749, "lh": 1_239_158, "ll": 1_202_283, "full": 18_075_335},
    "resnet152": {"hh": 9_000_875, "hl": 9_665_980, "lh": 6_049_582, "ll": 5_835_115},
    "gpt-1.5b": {"hh": 134_692, "hl": 142_325, "lh": 100_337, "ll": 101_891},
    "gpt-6.7b": {"hh": 32_832, "hl": 36_254, "ll": 27_602},
}
PREDICT = {
    "bert": {"hh": 1_688_122, "hl": 1_838_523, "lh": 1_168_869, "ll": 1_180_093, "full": 17_476_782},
    "resnet152": {"hh": 8_653_867, "hl": 9_309_188, "lh": 5_861_760, "ll": 5_765_224},
    "gpt-1.5b": {"hh": 120_326, "hl": 133_279, "lh": 90_334, "ll": 97_805},
    "gpt-6.7b": {"hh": 30_548, "hl": 34_594, "ll": 27_224},
}
SHIPPED = {  # value of the decisions that Parcae published, percent of the oracle
    "bert": {"hh": 96.6, "hl": 97.9, "lh": 94.2, "ll": 98.2, "full": 96.6},
    "resnet152": {"hh": 96.1, "hl": 96.1, "lh": 96.3, "ll": 99.9, "full": 96.7},
    "gpt-1.5b": {"hh": 90.9, "hl": 92.6, "lh": 89.5, "ll": 94.1, "full": 91.3},
    "gpt-6.7b": {"hh": 89.0, "hl": 95.9, "lh": 94.9, "ll": 98.1, "full": 94.1},
}
TRUTH_CHANGES = 118  # bert, full trace
GOAL = {"bert": 99.0, "resnet152": 99.0, "gpt-1.5b": 98.0, "gpt-6.7b": 98.0}  # percent of the oracle
DECISION_MS, MATRIX_MS = 5.0, 30.0
ROUNDING = 1e-9  # two runs with the same decisions add up the same samples in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of the trace, and what came before it."""

    name: str
    capacity: tuple[int, ...]
    before: tuple[int, ...]
    step_s: float = 60.0
    between: tuple[tuple[float, int], ...] = ()  # changes off the ticks

    @property
    def record(self) -> Record:
        """As a market."""
        return Record(capacity=self.capacity, before=self.before, step_s=self.step_s, between=self.between)


def part_of(name: str) -> Part:
    """One of HOURS."""
    capacity, (start, end) = capacity_of(load_trace(TRACE)), HOURS[name]
    return Part(name=name, capacity=tuple(capacity[start:end]), before=tuple(capacity[:start]))


def run_policies(job: SpotJob, part: Part) -> dict[str, RideResult]:
    """All policies over one stretch."""
    record = part.record
    runs = {name: ride(job, way_of(name, job, record), record) for name in WAYS}
    return {**runs, "bamboo": replay_bamboo(job, record)}


# ---------------------------------------------------------------------- the study

Found = Mapping[str, Mapping[str, Mapping[str, RideResult]]]  # model -> hour -> policy -> run


def _run(quick: bool, tell: Tell) -> Findings:
    found: dict[str, dict[str, dict[str, RideResult]]] = {}
    for model in PARCAE_MODELS:
        job, found[model] = measured_job(model), {}
        for hour in HOURS:
            if quick and hour == "full" and model != "bert":
                continue
            tell(f"{model}, {hour}")
            found[model][hour] = run_policies(job, part_of(hour))
    tell("money, on demand and deadlines")
    hours = {hour: part_of(hour).record for hour in HOURS if hour != "full"}
    money = money_findings(measured_job, part_of("full").record, hours, quick=quick)
    tell("losses announced")
    notice = notice_findings(measured_job, {hour: part_of(hour).record for hour in HOURS}, quick=quick)
    tell("several zones")
    zones = zones_findings(quick=quick)
    elsewhere: dict[str, dict[str, dict[str, RideResult]]] = {}
    for model in () if quick else PARCAE_MODELS:
        tell(f"{model}, on other traces")
        elsewhere[f"{model}, {ELSEWHERE}"] = {"full": run_policies(measured_job(model), _elsewhere())}
        elsewhere[f"{model}, {ELSEWHERE}, to the second"] = {
            "full": run_policies(measured_job(model), _to_the_second())
        }
        for trace, step_s in WHOLE_TRACES.items():
            job = measured_job(model, step_s=step_s)
            elsewhere[f"{model}, {trace}"] = {"full": run_policies(job, _whole(trace, step_s))}
    losses = losses_findings(quick, tell)
    tell("speed")
    more = (money, notice, zones, losses)
    forecasts, forecast_tables = forecast_checks(quick, tell)
    return Findings(
        checks=[
            *_reproduced(found),
            *_beaten(found),
            *_speed(),
            *_lookahead_of(elsewhere),
            *_over_traces(found, elsewhere),
            *(c for m in more for c in m.checks),
            *forecasts,
        ],
        tables=[_table({**found, **elsewhere}), *(table for each in more for table in each.tables), *forecast_tables],
        plots=money.plots,
        notes=[*_notes(), *(note for each in more for note in each.notes)],
    )


def _reproduced(found: Found) -> list[Check]:
    checks = []
    for model, hours in found.items():
        for hour, by_name in hours.items():
            for name, published, tolerance in (
                ("ideal", IDEAL, 0.0),
                ("checkpoint-restart", CHECKPOINT, 0.0),
                ("parcae-truth", TRUTH, 0.001),
                ("parcae", PREDICT, 0.02),
            ):
                of = published[model].get(hour)
                if of is not None:
                    label, ours = f"{model}/{hour}: {name}", float(round(by_name[name].samples))
                    checks.append(
                        within(label, ours, of, tolerance, published=of, unit="samples")
                        if tolerance
                        else equals(label, ours, of, published=of, unit="samples")
                    )
    changes = found["bert"]["full"]["parcae-truth"].changes
    label = "bert/full: changes of parcae-truth"
    return [*checks, equals(label, changes, TRUTH_CHANGES, published=TRUTH_CHANGES, unit="changes")]


def _beaten(found: Found) -> list[Check]:
    checks = []
    for model, hours in found.items():
        for hour, by_name in hours.items():
            ours = _percent(by_name, "liveput")
            label = f"{model}/{hour}: liveput, percent of the oracle"
            checks.append(at_least(label, ours, GOAL[model], published=SHIPPED[model][hour], unit="%"))
    low = found["gpt-6.7b"]["lh"]["liveput"]
    return [
        *checks,
        *_lookahead_of(found),
        at_least("gpt-6.7b/lh: time suspended below 12 instances", low.suspended_s, 60.0, unit="s"),
    ]


def _lookahead_of(found: Found) -> list[Check]:
    checks = []
    for model, hours in found.items():
        for rival in ("greedy-live", "parcae"):
            ahead = min(100.0 * by["liveput"].samples / by[rival].samples - 100.0 for by in hours.values())
            checks.append(at_least(f"{model}: least that liveput is ahead of {rival}", ahead, -ROUNDING, unit="%"))
    return checks


def _over_traces(found: Found, elsewhere: Found) -> list[Check]:
    """The mean over whole traces, each counted once; the hours are parts of one of them. None in a quick run."""
    checks = []
    for model in PARCAE_MODELS if elsewhere else ():
        others = (elsewhere[f"{model}, {name}"]["full"] for name in (ELSEWHERE, *WHOLE_TRACES))
        runs = [found[model]["full"], *others]
        for rival in ("greedy-live", "parcae"):
            ratio = Ratio.over([by["liveput"].samples for by in runs], [by[rival].samples for by in runs])
            label = f"{model}: samples of liveput over {rival}, mean of {len(runs)} whole traces"
            checks.append(at_least(label, ratio.mean, 1.0, off=ratio.off))
    return checks


def _elsewhere() -> Part:
    """A day of GCP's V100s, two fifths of the fleet: far calmer."""
    capacity = capacity_of(load_trace(ELSEWHERE))
    return Part(name=ELSEWHERE, capacity=tuple(round(0.4 * each) for each in capacity), before=())


def _to_the_second() -> Part:
    """The same, with every change when it happened; parcae goes on by the minute."""
    between = record_of(load_trace(ELSEWHERE)).between
    return replace(_elsewhere(), between=tuple((at_s, round(0.4 * now)) for at_s, now in between))


def _whole(trace: str, step_s: float) -> Part:
    """All zones together as one, 32 instances at most, at the trace's own ticks: kind to policies that ignore zones."""
    capacity = tuple(min(32, each) for each in capacity_of(load_trace(trace), step_s=step_s))
    return Part(name=trace, capacity=capacity, before=(), step_s=step_s)


def _percent(by_name: Mapping[str, RideResult], name: str) -> float:
    return 100.0 * by_name[name].samples / by_name["oracle"].samples


# ---------------------------------------------------------------------- speed


def _speed() -> list[Check]:
    """CPU time of decisions through the kernel, on a job that has not been asked before."""
    checks = []
    record = part_of("full").record
    for model in PARCAE_MODELS:
        job = measured_job(model)
        spent_ms = 1e3 * np.array(ride(job, way_of("liveput", job, record), record).decision_s)
        checks += [
            at_most(f"{model}: a decision at 32 instances, median", float(np.median(spent_ms)), DECISION_MS, unit="ms"),
            at_most(f"{model}: all pairs of grids, 6 of 32 lost", _matrix_ms(job.moves), MATRIX_MS, unit="ms"),
        ]
    return checks


def _matrix_ms(moves: ExpectedMoves) -> float:
    runs = []
    for _ in range(5):
        started_s = time.process_time()
        expected_moves(moves, [Loss(instances=32, lost=6)])
        runs.append(1e3 * (time.process_time() - started_s))
    return median(runs)


# ---------------------------------------------------------------------- tables


def _table(found: Found) -> StudyTable:
    rows = []
    for model, hours in found.items():
        for hour, by_name in hours.items():
            shares = [f"{_percent(by_name, name):.2f}" for name in by_name if name != "oracle"]
            rows.append([model, hour, f"{by_name['oracle'].samples:,.0f}", *shares])
    names = [name for name in next(iter(next(iter(found.values())).values())) if name != "oracle"]
    return StudyTable(title="Percent of the oracle", columns=["model", "hour", "oracle", *names], rows=rows, texts=2)


def _notes() -> list[str]:
    outliers = {model: smoothed(parcae_rates(model)).outliers for model in PARCAE_MODELS}
    named = [f"{model} {'x'.join(map(str, each.grid))}" for model, found in outliers.items() for each in found]
    return [
        "all but bamboo and deadlines are policies of the kernel, run by the simulator; these are replays of their own",
        "percent of the oracle for liveput is beside the value of Parcae's shipped decisions, which ride its own trace",
        "vgg19 is left out: its tables are not among the profiles",
        "published full-trace figures of gpt-6.7b are of an edited trace of 666 minutes and are not compared",
        f"measured speeds that fall as pipelines are added (used as they are, as in the original): {', '.join(named)}",
        "how far liveput looks was chosen with both traces in view: neither is a test on unseen data",
        "no chance is in a ride: one trace, and the worst of several, have no interval; means over whole traces have",
    ]


STUDY = Study(
    name="liveput",
    title="one job on preemptible instances: Parcae's figures reproduced, and decisions on events beside them",
    run=_run,
)
