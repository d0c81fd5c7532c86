"""The adviser against measurements: DeepVM's own scaling table, and models predicted where they were not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import MissingData
from sublet.market.catalogue import load_catalogue
from sublet.market.gpus import load_gpus
from sublet.perf.measured import MODELS
from sublet.planning.advise import Advice, Ask, advise
from sublet.planning.advise_frontier import Limits
from sublet.planning.advise_profiles import Profile, gavel_shelf, known_profile, sia_shelf
from sublet.planning.advise_transfer import FACTS_SPREAD, Measured, Transfer, ratio_from_facts
from sublet.planning.deepvm import AWS, SCALING_S
from sublet.studies.study import Findings, Table, Tell, at_most, equals, within

__all__ = ["Missed", "left_out", "on_the_scaling_table", "predicted", "regrets", "scaling_advice"]

Floats = npt.NDArray[np.float64]

GPUS = {"g3s.xlarge": "M60", "g4dn.xlarge": "T4", "g5.xlarge": "A10G"}
PUBLISHED = {("g5.xlarge", 1): (31.0, 0.0026), ("g4dn.xlarge", 16): (16.3, 0.0115), ("g4dn.xlarge", 28): (11.1, 0.0137)}
SOLD = {"T4": "aws:g4dn.12xlarge", "V100-32GB": "aws:p3dn.24xlarge", "A100": "aws:p4d.24xlarge"}
NOT_SOLD_USD_PER_GPU_H = {"RTX-2080Ti": 0.30}  # no cloud of the list has it; between a T4 and half of one
GPUS_PER_NODE = {"T4": 4}
WIDTHS = (1, 2, 4, 8, 16, 32)
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
        ours_s, ours_usd = (each.hours * 3600, each.usd) if each else (math.nan, math.nan)
        label = f"scaling table: {nodes} x {name.partition('.')[0]}"
        checks.append(within(f"{label} on the frontier, time", ours_s, seconds, 0.02, published=seconds, unit="s"))
        checks.append(within(f"{label} on the frontier, cost", ours_usd, usd, 0.02, published=usd, unit="USD"))
    checks.append(equals("scaling table: nodes of the cheapest cluster", advice.best.nodes, 1, published=1))
    rows = [
        [each.offer.instance_type, f"{each.nodes}", f"{each.hours * 3600:.1f}", f"{each.usd:.4f}"]
        for each in advice.frontier
    ]
    names = ", ".join(f"{nodes} x {name.partition('.')[0]}" for name, nodes in found)
    note = f"scaling table: the whole frontier is {names}; the published one names three of these"
    table = Table(title="Frontier of the scaling table", columns=["machine", "nodes", "s", "USD"], rows=rows)
    return Findings(checks=checks, tables=[table], notes=[note])


# ---------------------------------------------------------------------- where a model was not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """How far the predicted step times of one (model, kind) are from those measured: the median over its rows."""

    shelf: str
    model: str
    kind: str
    error: float
    rows: int


def left_out(name: str, shelf: Mapping[tuple[str, str], Measured], transfer: Transfer | None = None) -> list[Missed]:
    """Each (model, kind) predicted from the others: the model on other kinds, other models on this kind."""
    transfer, found = transfer or Transfer(shelf, load_gpus()), []
    for (model, kind), measured in shelf.items():
        predicted_s = transfer.step_s(model, kind, measured.confs)
        error_R = np.abs(predicted_s / measured.step_s - 1.0)
        error_R = error_R[np.isfinite(error_R)]
        if len(error_R):
            error = float(np.median(error_R))
            found.append(Missed(shelf=name, model=model, kind=kind, error=error, rows=len(error_R)))
    return found


def regrets(shelf: Mapping[tuple[str, str], Measured]) -> list[float]:
    """What choosing by predictions costs more than by measurements, for each (model, kind, value of time).

    The kind that is left out is predicted, the others are measured. Cost is money and the value of time.
    """
    transfer, found = Transfer(shelf, load_gpus()), []
    usd = _usd_per_gpu_h()
    for model in MODELS:
        profile = known_profile(model)
        kinds = [kind for of, kind in shelf if of == model]
        true_s = {kind: _seconds(profile, kind, shelf[model, kind].curve) for kind in kinds}
        for left in kinds:
            guess_s = dict(true_s)
            guess_s[left] = _seconds(profile, left, partial(transfer.step_s, model, left))
            for value in VALUES_OF_TIME:
                cost = {kind: _cost(true_s[kind], usd[kind], value) for kind in kinds}
                told = {kind: _cost(guess_s[kind], usd[kind], value) for kind in kinds}
                _, kind, at = min((float(told[kind].min()), kind, int(told[kind].argmin())) for kind in kinds)
                found.append(float(cost[kind][at]) / min(float(each.min()) for each in cost.values()) - 1.0)
    return found


def predicted(tell: Tell) -> Findings:
    """Leave-one-out: the error of the step time, and what choosing by predictions costs."""
    tell("each profiled (model, kind) predicted from the others")
    missed, notes = left_out("gavel", gavel_shelf()), []
    checks = []
    try:
        sia = sia_shelf()
    except MissingData:
        notes.append("leave-one-out: Gavel's models only, and no choices; the step times of Sia are not here")
    else:
        missed = [*left_out("sia", sia), *missed]
        notes.append(_elsewhere({"sia": sia, "gavel": gavel_shelf()}))
        lost = regrets(sia)
        checks = [
            at_most("leave-one-out: median extra cost of choosing by predictions", 100 * median(lost), 15, unit="%"),
        ]
        notes.append(
            f"leave-one-out: choosing by predictions costs {100 * fmean(lost):.0f} % more on average, "
            f"{100 * max(lost):.0f} % at worst, nothing in {sum(each < 1e-9 for each in lost)} of {len(lost)} cases"
        )
    checks.insert(
        0,
        at_most("leave-one-out: median error of step time", 100 * median(each.error for each in missed), 25, unit="%"),
    )
    for name in dict.fromkeys(each.shelf for each in missed):
        own = [each.error for each in missed if each.shelf == name]
        notes.append(
            f"leave-one-out: {len(own)} pairs of {name}, median error {100 * median(own):.0f} %, "
            f"nine in ten below {100 * float(np.quantile(own, 0.9)):.0f} %"
        )
    notes.append(_facts_note())
    rows = [[each.shelf, each.model, each.kind, f"{each.rows}", f"{100 * each.error:.0f}"] for each in missed]
    columns = ["source", "model", "kind", "rows", "median error, %"]
    return Findings(
        checks=checks, tables=[Table(title="Step time predicted", columns=columns, rows=rows, texts=3)], notes=notes
    )


def _seconds(profile: Profile, kind: str, step_s: Callable[[Floats], Floats]) -> Floats:
    """Of the whole job at each width, with a fixed batch."""
    node = GPUS_PER_NODE.get(kind, 8)
    gpus = np.array([float(width) for width in WIDTHS if width <= profile.batch])
    most = profile.curves[kind].max_local
    each = np.ceil(profile.batch / gpus)
    steps = np.ceil(each / most)
    confs = np.column_stack([np.ceil(gpus / node), gpus, np.ceil(each / steps)])
    seconds = step_s(confs) * steps  # all micro-steps as long as the last: alike for both sides
    return np.asarray(seconds * SAMPLES / profile.batch)


def _cost(seconds: Floats, usd_per_gpu_h: float, usd_per_h: float) -> Floats:
    gpus = np.array(WIDTHS[: len(seconds)], dtype=np.float64)
    return np.asarray((gpus * usd_per_gpu_h + usd_per_h) * seconds / 3600.0)


def _usd_per_gpu_h() -> dict[str, float]:
    catalogue = load_catalogue()
    return NOT_SOLD_USD_PER_GPU_H | {kind: catalogue.find(name).usd_per_gpu_h for kind, name in SOLD.items()}


def _elsewhere(shelves: Mapping[str, Mapping[tuple[str, str], Measured]]) -> str:
    """The error on each source with the settings that are best on the other: what to expect of models to come."""
    gpus, settings = load_gpus(), [(votes, hold) for votes in (0, 1, 2) for hold in (0.1, 0.3, 1.0, 3.0)]
    errors = {
        setting: {
            name: [
                each.error for each in left_out(name, shelf, Transfer(shelf, gpus, votes=setting[0], hold=setting[1]))
            ]
            for name, shelf in shelves.items()
        }
        for setting in settings
    }
    told = []
    for name, other in (("sia", "gavel"), ("gavel", "sia")):
        chosen = min(settings, key=lambda setting: median(errors[setting][other]))
        told.append(f"{100 * median(errors[chosen][name]):.0f} % on {name} with those best on {other}")
    all_pairs = [median(error for of in errors[setting].values() for error in of) for setting in settings]
    return (
        f"leave-one-out: two settings of the prediction were chosen on these very pairs; chosen elsewhere they err "
        f"{' and '.join(told)}; the {len(settings)} that were tried err {100 * min(all_pairs):.0f} to "
        f"{100 * max(all_pairs):.0f} % over all pairs"
    )


def _facts_note() -> str:
    """How far facts alone are, where nobody ran on a kind."""
    gpus, shelf = load_gpus(), gavel_shelf()
    errors = []
    for (model, kind), measured in shelf.items():
        one = measured.confs[:, 1] == 1
        for of, source in shelf:
            if of == model and source != kind and one.any():
                told = shelf[model, source].curve(measured.confs[one]) * ratio_from_facts(gpus[source], gpus[kind])
                errors += [abs(math.log(x)) for x in (told / measured.step_s[one]).tolist() if math.isfinite(x)]
    return (
        f"kinds on which no model ran are predicted by GPU facts: on Gavel's single GPUs the median error is "
        f"{100 * math.expm1(median(errors)):.0f} %; the adviser takes {100 * FACTS_SPREAD:.0f} % for their spread"
    )
