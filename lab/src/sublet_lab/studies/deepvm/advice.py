"""The adviser against measurements: DeepVM's own scaling table, and models predicted where they were not run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType

import numpy as np

from sublet.advise.adviser import Advice, Ask, advise
from sublet.advise.error import without_kind
from sublet.advise.frontier import Limits
from sublet.advise.measured_models import known_shelf
from sublet.advise.profiles import MEASURED_ON_GBIT, Profile, known_profile
from sublet.advise.speed import Machine, speeds
from sublet.advise.transfer import PREDICTED_SPREAD, Transfer
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.market.catalogue import load_catalogue, load_gpus
from sublet.perf.measured import MODELS
from sublet.solve.arrays import Floats
from sublet_lab.studies.deepvm.planner import AWS, SCALING_S
from sublet_lab.studies.study import Findings, StudyTable, Tell, at_most, equals, within

GPUS = {"g3s.xlarge": "M60", "g4dn.xlarge": "T4", "g5.xlarge": "A10G"}
PUBLISHED = {("g5.xlarge", 1): (31.0, 0.0026), ("g4dn.xlarge", 16): (16.3, 0.0115), ("g4dn.xlarge", 28): (11.1, 0.0137)}
SOLD = {"T4": "aws:g4dn.12xlarge", "V100-32GB": "aws:p3dn.24xlarge", "A100": "aws:p4d.24xlarge"}
NOT_SOLD_USD_PER_GPU_H = {"RTX-2080Ti": 0.30}  # no cloud of the list has it; between a T4 and half of one
GPUS_PER_NODE = {"T4": 4}
MOST_NODES = 8
TEN_TO_NINETY = 1.2816  # standard deviations on either side of the middle
NO_SETTINGS: Mapping[str, float] = MappingProxyType({})
VALUES_OF_TIME = (0.0, 2.0, 20.0)  # USD per hour
SAMPLES = 1e6


# ---------------------------------------------------------------------- a table that DeepVM cannot read


def scaling_advice(limits: Limits | None = None) -> Advice:
    """The adviser on the measured table, at DeepVM's spot prices and without what it ignores."""
    offers = [
        Offer(
            id=f"aws:{trainer.name}:spot",
            gpu=GPUS[trainer.name],
            gpus_per_node=1,
            market=Market.SPOT,
            price=Price.from_usd_per_h(f"{trainer.spot_usd_per_h:.4f}"),
            cloud="aws",
            instance_type=trainer.name,
            minimum_billing_s=0.0,
        )
        for trainer in AWS
    ]
    profile = Profile(
        name="ResNet-18, three epochs of CIFAR-10",
        batch=128 * 32,
        state_bytes=134e6,
        restart_s=0.0,
        source="the scaling measurement in the repository of DeepVM",
        rates={GPUS[name]: {n: 1.0 / s for n, s in by.items()} for name, by in SCALING_S.items()},
        between=False,
        spread=0.0,
    )
    ask = Ask(
        profile=profile,
        samples=1.0,
        limits=limits or Limits(),
        goal="cheapest",
        most_nodes=32,
        provision_s=0.0,
        reclaims=0.0,
        resolution=0.0,
    )
    return advise(ask, offers, load_gpus())


def on_the_scaling_table() -> Findings:
    """The three published points are on the adviser's frontier, and "cheapest" is one node."""
    advice = scaling_advice()
    found = {(each.offer.instance_type, each.nodes): each for each in advice.frontier}
    checks = []
    for (name, nodes), (seconds, usd) in PUBLISHED.items():
        each = found.get((name, nodes))
        ours_s, ours_usd = (each.hours * SECONDS_PER_H, each.usd) if each else (math.nan, math.nan)
        label = f"scaling table: {nodes} x {name.partition('.')[0]}"
        checks.append(within(f"{label} on the frontier, time", ours_s, seconds, 0.02, published=seconds, unit="s"))
        checks.append(within(f"{label} on the frontier, cost", ours_usd, usd, 0.02, prototype=usd, unit="USD"))
    checks.append(equals("scaling table: nodes of the cheapest cluster", advice.best.nodes, 1, prototype=1))
    rows = [
        [each.offer.instance_type, f"{each.nodes}", f"{each.hours * SECONDS_PER_H:.1f}", f"{each.usd:.4f}"]
        for each in advice.frontier
    ]
    names = ", ".join(f"{nodes} x {name.partition('.')[0]}" for name, nodes in found)
    note = f"scaling table: the whole frontier is {names}; the published one names three of these"
    table = StudyTable(title="Frontier of the scaling table", columns=["machine", "nodes", "s", "USD"], rows=rows)
    return Findings(checks=checks, tables=[table], notes=[note])


# ---------------------------------------------------------------------- where a model was not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """How far the predicted step times of one (model, kind) are from those measured: the median over its rows."""

    shelf: str
    model: str
    kind: str
    error: float
    ratio: float  # the median of predicted by measured
    rows: int


def left_out(settings: Mapping[str, float] = NO_SETTINGS, *, others: bool = True) -> list[Missed]:
    """Each (model, kind) predicted from the others, by what the adviser predicts with.

    From the model on other kinds and, with `others`, from other models on this kind; without, the kind is as new to all
    as most kinds on sale are. `settings` are those of `Transfer`.
    """
    shelf, gpus, found = known_shelf(), load_gpus(), []
    for (model, kind), measured in shelf.items():
        kept = {key: each for key, each in shelf.items() if others or key[1] != kind or key[0] == model}
        predicted_s = Transfer(kept, gpus, **settings).step_s(model, kind, measured.confs)  # type: ignore[arg-type]  # settings are numbers
        ratio_R = predicted_s / measured.step_s
        ratio_R = ratio_R[np.isfinite(ratio_R)]
        if len(ratio_R):
            error, middle = float(np.median(np.abs(ratio_R - 1.0))), float(np.median(ratio_R))
            source = "sia" if model in MODELS else "gavel"
            found.append(Missed(shelf=source, model=model, kind=kind, error=error, ratio=middle, rows=len(ratio_R)))
    return found


def regrets() -> list[float]:
    """The extra cost of choosing by predictions rather than by measurements, for each (model, kind, value of time).

    The kind that is left out is predicted by the adviser, the others are measured. Cost is money and the value of time.
    """
    gpus, usd, found = load_gpus(), _usd_per_gpu_h(), []
    machines = {kind: Machine(kind, GPUS_PER_NODE.get(kind, 8), gbit) for kind, gbit in MEASURED_ON_GBIT.items()}
    transfer = Transfer(known_shelf(), gpus)
    for model in MODELS:
        profile = known_profile(model)
        rate = _rates(profile, machines, transfer)
        for left, machine in machines.items():
            told = rate | _rates(without_kind(profile, left), {left: machine}, transfer)
            for value in VALUES_OF_TIME:
                cost = {kind: _cost(rate[kind], each.gpus, usd[kind], value) for kind, each in machines.items()}
                guess = {kind: _cost(told[kind], each.gpus, usd[kind], value) for kind, each in machines.items()}
                _, kind, at = min((float(guess[kind].min()), kind, int(guess[kind].argmin())) for kind in machines)
                found.append(float(cost[kind][at]) / min(float(each.min()) for each in cost.values()) - 1.0)
    return found


def predicted(tell: Tell) -> Findings:
    """Leave-one-out: the error of the step time, and what choosing by predictions costs."""
    tell("each profiled (model, kind) predicted from the others")
    missed, facts = left_out(), left_out(others=False)
    error = 100 * median(each.error for each in missed)
    checks, notes = [at_most("leave-one-out: median error of step time", error, 25, unit="%")], []
    if any(each.shelf == "sia" for each in missed):
        lost = regrets()
        extra = 100 * median(lost)
        checks.append(at_most("leave-one-out: median extra cost of choosing by predictions", extra, 15, unit="%"))
        notes.append(
            f"leave-one-out: choosing by predictions costs {100 * fmean(lost):.0f} % more on average, "
            f"{100 * max(lost):.0f} % at worst, nothing in {sum(each < 1e-9 for each in lost)} of {len(lost)} cases"
        )
        notes.append(_chosen_elsewhere())
    else:
        notes.append("leave-one-out: Gavel's models only, and no choices; the step times of Sia are not here")
    for name in dict.fromkeys(each.shelf for each in missed):
        own = [each.error for each in missed if each.shelf == name]
        notes.append(
            f"leave-one-out: {len(own)} pairs of {name}, median error {100 * median(own):.0f} %, "
            f"nine in ten below {100 * float(np.quantile(own, 0.9)):.0f} %"
        )
    notes.append(
        f"kinds on which no model ran, as most on sale, are predicted by GPU facts: with all of a kind left out the "
        f"median error is {100 * median(each.error for each in facts):.0f} %"
    )
    notes += [_covered("with other models on the kind", missed), _covered("without", facts)]
    by_facts = {(each.model, each.kind): each.error for each in facts}
    rows = [
        [
            *(each.shelf, each.model, each.kind, f"{each.rows}", f"{100 * each.error:.0f}"),
            f"{100 * by_facts[each.model, each.kind]:.0f}",
        ]
        for each in missed
    ]
    columns = ["source", "model", "kind", "rows", "median error, %", "by facts alone, %"]
    return Findings(
        checks=checks,
        tables=[StudyTable(title="Step time predicted", columns=columns, rows=rows, texts=3)],
        notes=notes,
    )


def _covered(what: str, missed: Sequence[Missed]) -> str:
    """Whether the stated spread is honest."""
    within = sum(abs(math.log(each.ratio)) <= TEN_TO_NINETY * PREDICTED_SPREAD for each in missed) / len(missed)
    told = f"{100 * within:.0f} % of the {len(missed)} pairs"
    return f"{what}, {told} lie between the p10 and p90 that the adviser would state"


def _rates(profile: Profile, machines: Mapping[str, Machine], transfer: Transfer) -> dict[str, Floats]:
    """Samples per second on 1 to 8 nodes of each machine, as the adviser has them."""
    found = speeds(profile, list(machines.values()), MOST_NODES, load_gpus(), transfer)
    return dict(zip(machines, found.rate_MN, strict=True))


def _cost(rate_N: Floats, gpus_per_node: int, usd_per_gpu_h: float, usd_per_h: float) -> Floats:
    """USD for a million samples, on each number of nodes."""
    nodes_N = np.arange(1.0, len(rate_N) + 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray((nodes_N * gpus_per_node * usd_per_gpu_h + usd_per_h) * SAMPLES / rate_N / SECONDS_PER_H)


def _usd_per_gpu_h() -> dict[str, float]:
    catalogue = load_catalogue()
    return NOT_SOLD_USD_PER_GPU_H | {kind: catalogue.find(name).usd_per_gpu_h for kind, name in SOLD.items()}


def _chosen_elsewhere() -> str:
    """The error on each source with the settings that are best on the other: what to expect of models to come."""
    settings = [{"votes": votes, "hold": hold} for votes in (0, 1, 2) for hold in (0.1, 0.3, 1.0, 3.0)]
    tried = [left_out(setting) for setting in settings]

    def error(missed: Sequence[Missed], *names: str) -> float:
        return median(each.error for each in missed if each.shelf in names)

    told = []
    for name, other in (("sia", "gavel"), ("gavel", "sia")):
        chosen = min(tried, key=lambda missed: error(missed, other))
        told.append(f"{100 * error(chosen, name):.0f} % on {name} with those best on {other}")
    all_pairs = [error(missed, "sia", "gavel") for missed in tried]
    return (
        f"leave-one-out: two settings of the prediction were chosen on these very pairs; chosen elsewhere they err "
        f"{' and '.join(told)}; the {len(settings)} that were tried err {100 * min(all_pairs):.0f} to "
        f"{100 * max(all_pairs):.0f} % over all pairs"
    )
