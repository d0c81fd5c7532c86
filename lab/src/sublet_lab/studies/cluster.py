"""Every policy on two clusters of 64 GPUs that are paid for anyway: one of T4s alone, one of three kinds.

The jobs, tables and pauses are those that were published with Pollux and with Sia; both run in rounds of 60 s, as their
authors run them and also free of what only learning speeds asks for. Jobs choose their batch. `price` decides at every
event, and is told of sizes what its owner said, what can be learned from jobs that are done, or nothing.

Knowledge is a dimension: all of it runs again where every policy that asks for speeds has to learn them, and where jobs
of a model are of different sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from sublet.domain.job import Job
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import MissingData
from sublet.perf.speedup import Amdahl
from sublet.planning.value_of_time import HURRY
from sublet.policies.price.policy import Price
from sublet_lab.studies import pollux_oracle
from sublet_lab.studies.entrants import (
    FREE,
    LEARNERS,
    PRICE,
    PRICES,
    Entrant,
    contenders,
    learners,
    others,
    others_learn,
)
from sublet_lab.studies.peers import (
    Measured,
    Setting,
    measured,
    mixed_cluster,
    sizes_spread,
)
from sublet_lab.studies.ratio import Ratio
from sublet_lab.studies.study import Check, Findings, Study, StudyTable, Tell, at_most
from sublet_lab.studies.unseen import NUMBERS, unseen_cluster

MEAN = {  # of the mean time of such a rival at most
    "64 T4": {PRICE: 0.91, "price, sizes learned": 0.93, "price, no sizes": 0.97},
    "64 mixed": {PRICE: 0.96, "price, sizes learned": 0.96, "price, no sizes": 0.99},
}
P99, GPU_HOURS = 1.0, 1.03  # the same of the p99 and of the GPU-hours
FREELY = (
    "free: the rival knows all speeds and may move a job to any number of GPUs, as price does; as published: it at "
    "most doubles them, and sia learns speeds as it goes"
)
BY_GROUP = (
    "learned by group: of jobs of the same model that were done before, in this run; in these traces all jobs of a "
    "model are of one size, which flatters it"
)
DOUBLING = (
    "speeds learned: every job begins without a profile, and the policy sees of it what the job has learned of itself, "
    "as in Sia (perf.sia_learned); all, price too, at most double the GPUs that a job has tried"
)
SPREAD_OUT = "sizes spread: each job ends after 10 to 100 % of its model's work, drawn by the number of the workload"
ROUGHLY = 0.05  # one trace proves nothing finer: a quick run allows so much more, and looks at means alone

# The constants of price were chosen on the workloads 1 to 6 of Pollux at load 1, on draws of these jobs, on saturn-1 to
# 4 and on philly-1, 2, 4, 5. Here are others: of Pollux the jobs that load 2 has besides load 1. Saturn's ten are draws
# of their authors from the same hours, and any two of them have a third of their jobs in common.
REPORTED_T4 = NUMBERS
TWICE_T4 = (NUMBERS[0:2], NUMBERS[2:4], NUMBERS[4:6])  # the same jobs, two traces at a time
REPORTED_MIXED: Sequence[tuple[str, str]] = tuple(("saturn", str(number)) for number in range(5, 11))


def _run(quick: bool, tell: Tell) -> Findings:
    """Both clusters."""
    some = slice(0, 1) if quick else slice(None)
    clusters = {"64 T4": [unseen_cluster(number) for number in REPORTED_T4[some]]}
    notes = [FREELY, BY_GROUP, DOUBLING, SPREAD_OUT]
    try:
        clusters["64 mixed"] = [mixed_cluster(trace, number) for trace, number in REPORTED_MIXED[some]]
    except MissingData:
        notes.append("the mixed cluster is left out: the step times of Sia are not here")
    parts = [_flapping(tell)]
    for name, settings in clusters.items():
        parts.append(_cluster(name, settings, quick, tell))
        if name == "64 T4" or not quick:
            parts.append(_speeds_learned(name, settings, quick, tell))
        if not quick:
            parts.append(_sizes_spread(name, settings, tell))
    if not quick:
        parts.append(_twice_the_load(tell))
    return Findings(
        checks=[check for part in parts for check in part.checks],
        tables=[table for part in parts for table in part.tables],
        notes=notes,
    )


def _cluster(name: str, settings: Sequence[Setting], quick: bool, tell: Tell) -> Findings:
    """Rivals and `price` on all settings of one cluster, the others on the first."""
    found = _measure(settings, contenders, tell)
    tables = [_table(f"{name}: means over {len(settings)} traces" if not quick else settings[0].name, found)]
    if not quick:
        tables.append(_table(f"{settings[0].name}: the others", _measure(settings[:1], others, tell)))
    ratios = _beside(found, FREE[name])
    tables.append(_ratio_table(f"{name}: all know all speeds and move freely", ratios))
    never = sum(one.unfinished for ours in PRICES for one in found[ours].outcomes)
    checks = [at_most(f"{name}: jobs that never ended under price", never, 0.0, unit="jobs")]
    return Findings(checks=[*_checks(name, MEAN[name], ratios, quick=quick), *checks], tables=tables)


def _speeds_learned(name: str, settings: Sequence[Setting], quick: bool, tell: Tell) -> Findings:
    """The same rows, the same goals, where no policy is told a speed."""
    found, what = _measure(settings, learners, tell), f"{name}, speeds learned"
    ratios = _beside(found, LEARNERS[name])
    of = f"means over {len(settings)} traces" if not quick else settings[0].name
    tables = [_table(f"{what}: {of}", found)]
    if not quick:
        tables.append(_table(f"{what}: the others, {settings[0].name}", _measure(settings[:1], others_learn, tell)))
    tables.append(_ratio_table(f"{what}: all learn their speeds and at most double", ratios))
    return Findings(checks=_checks(what, MEAN[name], ratios, quick=quick), tables=tables)


def _sizes_spread(name: str, settings: Sequence[Setting], tell: Tell) -> Findings:
    """Beside the claims, and without goals: how much of them rests on all jobs of a model being of one size."""
    found = _measure([sizes_spread(each, seed) for seed, each in enumerate(settings)], contenders, tell)
    title = f"{name}, sizes spread: all know all speeds and move freely"
    return Findings(checks=[], tables=[_ratio_table(title, _beside(found, FREE[name]))])


def _twice_the_load(tell: Tell) -> Findings:
    """Beside the claims, and without goals: the shorter GPUs are, the more there is to be won."""
    found = _measure([unseen_cluster(*numbers) for numbers in TWICE_T4], contenders, tell)
    title = f"64 T4, twice the load, {len(TWICE_T4)} traces: all know all speeds and move freely"
    return Findings(checks=[], tables=[_ratio_table(title, _beside(found, FREE["64 T4"]))])


def _measure(
    settings: Sequence[Setting], entrants_of: Callable[[Setting], Sequence[Entrant]], tell: Tell
) -> Mapping[str, _Found]:
    found: dict[str, _Found] = {}
    for setting in settings:
        at_once = replace(setting, cloud=replace(setting.cloud, physics=replace(setting.cloud.physics, round_s=0.0)))
        for entrant in entrants_of(setting):
            tell(f"{setting.name}, {entrant.name}")
            where = setting if entrant.in_rounds else at_once
            outcome = measured(where, entrant.name, entrant.policy)
            found.setdefault(entrant.name, _Found(entrant, [])).outcomes.append(outcome)
    return found


def _table(title: str, found: Mapping[str, _Found]) -> StudyTable:
    columns = ["policy", "knows speeds", "sizes", "mean, h", "p99, h", "makespan, h", "GPU-h", "restarts / job"]
    columns += ["lost to pauses, %", "decision, ms"]
    rows = [[name, each.entrant.speeds, each.entrant.sizes, *_cells(each.outcomes)] for name, each in found.items()]
    return StudyTable(title=title, columns=columns, rows=rows, texts=3)


# ---------------------------------------------------------------------- beside rivals that know the same


def _beside(found: Mapping[str, _Found], rivals: Sequence[str]) -> Ratios:
    pairs = [(ours, rival) for ours in PRICES if ours in found for rival in rivals]
    told = [f"{rival.partition(',')[0]}, told sizes" for rival in rivals]
    pairs += [(PRICE, rival) for rival in told if rival in found]
    return {(ours, rival): _ratios(found[ours].outcomes, found[rival].outcomes) for ours, rival in pairs}


def _ratios(ours: Sequence[Measured], theirs: Sequence[Measured]) -> tuple[Ratio, Ratio, Ratio]:
    """Ratios of the mean time, the p99 and the GPU-hours."""
    return (
        Ratio.over([one.mean_h for one in ours], [one.mean_h for one in theirs]),
        Ratio.over([one.p99_h for one in ours], [one.p99_h for one in theirs]),
        Ratio.over([one.gpu_hours for one in ours], [one.gpu_hours for one in theirs]),
    )


Ratios = Mapping[tuple[str, str], tuple[Ratio, Ratio, Ratio]]


def _ratio_table(who: str, ratios: Ratios) -> StudyTable:
    rows = [[ours, PRICES[ours][1], rival, *map(str, each)] for (ours, rival), each in ratios.items()]
    columns = ["policy", "sizes it knows", "over", "mean time", "p99", "GPU-hours"]
    title = f"{who}; a rival knows no sizes but where it says so; means of ratios, 95 % intervals"
    return StudyTable(title=title, columns=columns, rows=rows, texts=3)


def _checks(name: str, goals: Mapping[str, float], ratios: Ratios, *, quick: bool) -> list[Check]:
    checks = []
    for (ours, rival), (mean, p99, gpu_hours) in ratios.items():
        if ours not in goals or rival.endswith("told sizes"):  # beside the goals, which are over rivals without
            continue
        what = f"{name}: {{}} of {ours} over {rival}"
        goal = goals[ours] + (ROUGHLY if quick else 0.0)
        checks.append(at_most(what.format("mean time"), mean.mean, goal, off=mean.off))
        if not quick:
            checks.append(at_most(what.format("p99"), p99.mean, P99, off=p99.off))
            checks.append(at_most(what.format("GPU-hours"), gpu_hours.mean, GPU_HOURS, off=gpu_hours.off))
    return checks


def _flapping(tell: Tell) -> Findings:
    """Eight long jobs share 64 T4s; every ten minutes eight short ones come for a minute or two, and go."""
    long_jobs = [
        Job(
            id=f"long-{at}",
            submit_s=0.0,
            work=40 * SECONDS_PER_H,
            speed=Amdahl(parallel=0.99),
            max_gpus=64,
            restart_s=30.0,
        )
        for at in range(8)
    ]
    short_jobs = [
        Job(id=f"short-{wave}-{at}", submit_s=600.0 * wave, work=150.0, speed=Amdahl(parallel=0.9), max_gpus=4)
        for wave in range(1, 36)
        for at in range(8)
    ]
    physics = replace(pollux_oracle.CLOUD.physics, round_s=0.0)
    setting = Setting(
        name="flapping load", jobs=long_jobs + short_jobs, cloud=replace(pollux_oracle.CLOUD, physics=physics), batch={}
    )
    tell("flapping load, price")
    ours = measured(setting, PRICE, Price(hour_usd=HURRY))
    check = at_most("flapping load: GPU time that price loses to pauses", 100 * ours.paused, 5.0, unit="%")
    return Findings(checks=[check])


class _Found(NamedTuple):
    """The outcomes of one policy, trace by trace."""

    entrant: Entrant
    outcomes: list[Measured]


def _cells(outcomes: Sequence[Measured]) -> list[str]:
    return [
        f"{fmean(one.mean_h for one in outcomes):.3f}",
        f"{fmean(one.p99_h for one in outcomes):.2f}",
        f"{fmean(one.makespan_h for one in outcomes):.2f}",
        f"{fmean(one.gpu_hours for one in outcomes):,.0f}",
        f"{fmean(one.restarts for one in outcomes):.2f}",
        f"{100 * fmean(one.paused for one in outcomes):.1f}",
        f"{fmean(one.decision_ms for one in outcomes):.2f}",
    ]


STUDY = Study(name="cluster", title="Every policy on 64 GPUs of one kind and of three, beside Pollux and Sia", run=_run)
