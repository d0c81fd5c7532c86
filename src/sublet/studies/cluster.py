"""Every policy on two clusters of 64 GPUs that are paid for anyway: one of T4s alone, one of three kinds.

The jobs, tables and pauses are those that were published with Pollux and with Sia; both run as their authors run them,
in rounds of 60 s. Jobs choose their batch. `price` decides at every event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from sublet.domain.job import Job
from sublet.domain.plan import Policy
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import MissingData
from sublet.perf.speedup import Amdahl
from sublet.planning.value_of_time import HURRY
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.policies.greedy.speed import GreedySpeed
from sublet.policies.las import Las
from sublet.policies.max_speedup import MaxSpeedup
from sublet.policies.mip.policy import Mip
from sublet.policies.optimus import Optimus
from sublet.policies.price.plan import WorkBelief
from sublet.policies.price.policy import Price
from sublet.policies.srtf import Srtf
from sublet.policies.tiresias import Tiresias
from sublet.studies import pollux_oracle
from sublet.studies.peers import (
    Outcome,
    Setting,
    homogeneous_cluster,
    measured,
    mixed_cluster,
    pollux_as_published,
    sia_as_published,
)
from sublet.studies.study import Check, Findings, Study, StudyTable, Tell, at_most

__all__ = ["STUDY"]

GOAL = 0.85  # of the mean time of Pollux, and of Sia
PRICE = "price"
PRICES = {
    WorkBelief.WORK: PRICE,
    WorkBelief.PROGRESS: "price, told no sizes",
    WorkBelief.NOTHING: "price, blind to size",
}


def _run(quick: bool, tell: Tell) -> Findings:
    """Both clusters."""
    numbers = ("1",) if quick else ("1", "2", "3", "4")
    parts = [_cluster("64 T4", [homogeneous_cluster(number) for number in numbers], quick, tell)]
    told = (
        "pollux and sia know no sizes; srtf, mip and price (unless it says otherwise) are told the work that jobs have "
        "left, las and 'price, told no sizes' go by what a job has had so far"
    )
    notes = [told]
    try:
        mixed = [mixed_cluster("philly"), *([] if quick else [mixed_cluster("saturn")])]
    except MissingData:
        notes.append("the mixed cluster is left out: the step times of Sia are not here")
    else:
        parts.append(_cluster("64 mixed", mixed, quick, tell))
    parts.append(_flapping(tell))
    return Findings(
        checks=[check for part in parts for check in part.checks],
        tables=[table for part in parts for table in part.tables],
        notes=notes,
    )


def _cluster(name: str, settings: Sequence[Setting], quick: bool, tell: Tell) -> Findings:
    """All policies on all settings of one cluster; figures are means over the settings."""
    found: dict[str, list[Outcome]] = {}
    for setting in settings:
        rounds, events = _policies(setting, quick=quick)
        for policy_name, policy in rounds.items():
            tell(f"{setting.name}, {policy_name}")
            found.setdefault(policy_name, []).append(measured(setting, policy_name, policy))
        at_once = replace(setting, cloud=replace(setting.cloud, physics=replace(setting.cloud.physics, round_s=0.0)))
        for policy_name, policy in events.items():
            tell(f"{setting.name}, {policy_name}")
            found.setdefault(policy_name, []).append(measured(at_once, policy_name, policy))
    rows = [[name, policy, _knows(policy), *_cells(outcomes)] for policy, outcomes in found.items()]
    columns = ["cluster", "policy", "knows", "mean, h", "p99, h", "makespan, h", "GPU-h", "restarts / job"]
    columns += ["lost to pauses, %", "decision, ms"]
    table = StudyTable(title=f"{name}: means over {len(settings)} workloads", columns=columns, rows=rows, texts=3)
    return Findings(checks=_checks(name, found), tables=[table])


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


def _policies(setting: Setting, *, quick: bool) -> tuple[Mapping[str, Policy], Mapping[str, Policy]]:
    """Those that decide in rounds, as published, and those that decide at every event."""
    rounds: dict[str, Policy] = {"pollux": pollux_as_published()}
    if len(setting.cloud.offers) > 1:
        rounds["sia"] = sia_as_published(setting)
    events: dict[str, Policy] = {name: Price(knows=knows) for knows, name in PRICES.items()}
    events["max-speedup"] = MaxSpeedup()
    if not quick:
        events |= {"mip": Mip(), "greedy-speed": GreedySpeed(), "elastic-batch": ElasticBatch(), "optimus": Optimus()}
        events |= {"equal": Equal(), "srtf": Srtf(), "las": Las(), "tiresias": Tiresias(), "fifo": Fifo()}
    return rounds, events


def _checks(name: str, found: Mapping[str, Sequence[Outcome]]) -> list[Check]:
    ours = found[PRICE]
    mean_h, p99_h = fmean(one.mean_h for one in ours), fmean(one.p99_h for one in ours)
    checks = []
    for rival in ("pollux", "sia"):
        if rival in found:
            theirs = found[rival]
            ratio = mean_h / fmean(one.mean_h for one in theirs)
            checks.append(at_most(f"{name}: mean time of price over {rival}", ratio, GOAL))
            ratio = p99_h / fmean(one.p99_h for one in theirs)
            checks.append(at_most(f"{name}: p99 of price over {rival}", ratio, 1.0))
    others = {policy: fmean(one.mean_h for one in outcomes) for policy, outcomes in found.items() if policy != PRICE}
    best = min(others, key=lambda policy: others[policy])
    checks.append(at_most(f"{name}: mean time of price over the best other ({best})", mean_h / others[best], 1.0))
    never = sum(one.unfinished for one in ours)
    checks.append(at_most(f"{name}: jobs that never ended under price", never, 0.0, unit="jobs"))
    return checks


def _cells(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"{fmean(one.mean_h for one in outcomes):.3f}",
        f"{fmean(one.p99_h for one in outcomes):.2f}",
        f"{fmean(one.makespan_h for one in outcomes):.2f}",
        f"{fmean(one.gpu_hours for one in outcomes):,.0f}",
        f"{fmean(one.restarts for one in outcomes):.2f}",
        f"{100 * fmean(one.paused for one in outcomes):.1f}",
        f"{fmean(one.decision_ms for one in outcomes):.2f}",
    ]


def _knows(policy: str) -> str:
    if policy in {"price", "srtf", "mip", "optimus"}:
        return "declared work"
    return "progress" if policy in {"price, told no sizes", "las", "tiresias"} else "nothing"


STUDY = Study(name="cluster", title="Every policy on 64 GPUs of one kind and of three, beside Pollux and Sia", run=_run)
