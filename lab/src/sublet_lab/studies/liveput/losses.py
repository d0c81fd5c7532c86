"""Losses ahead: does a distribution of them, and the expectation over it, beat taking for granted what is there?

`liveput` plans as if nothing were lost. Here it plans with a chance of a fall at each tick, which grows after a fall,
may depend on the hour, and has the sizes of falls that were seen (`market.losses`). The cost of going on after each is
exact (`solve.expectation`). The candidate is chosen by the samples of the tuning set, and then met by the held-out one,
which nothing was chosen on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np

from sublet.market.losses import LossesAhead
from sublet.market.traces import load_trace
from sublet.perf.parcae import measured_job
from sublet.policies.liveput.policy import Liveput
from sublet_lab.rides.record import capacity_of
from sublet_lab.rides.ride import Way, ride
from sublet_lab.studies.ratio import Ratio
from sublet_lab.studies.study import Check, Findings, StudyTable, Tell, at_most

MOST = 32  # instances: what the profiles were measured up to
MODELS = ("bert", "gpt-6.7b")
QUICK_TICKS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Ticks of a trace, the whole of it scaled to at most `MOST` instances."""

    trace: str
    first: float  # of its ticks
    last: float
    step_s: float = 60.0

    @property
    def name(self) -> str:
        return f"{self.trace}, {self.first:.0%} to {self.last:.0%}"

    def capacity(self) -> tuple[int, ...]:
        every = np.array(capacity_of(load_trace(self.trace), step_s=self.step_s))
        scaled = np.rint(every * min(1.0, MOST / every.max())).astype(int)
        return tuple(scaled[int(self.first * len(scaled)) : int(self.last * len(scaled))].tolist())


SKYPILOT, STEP_S = "skypilot-v100-2023-08", 300.0
TUNING = (
    _Stretch(trace="bamboo-p3", first=0.0, last=0.5),
    _Stretch(trace="bamboo-gcp", first=0.0, last=0.5),
    _Stretch(trace=SKYPILOT, first=0.0, last=0.15, step_s=STEP_S),
)
HELD_OUT = (
    _Stretch(trace="bamboo-p3", first=0.5, last=1.0),
    _Stretch(trace="bamboo-gcp", first=0.5, last=1.0),
    _Stretch(trace=SKYPILOT, first=0.5, last=0.65, step_s=STEP_S),
    _Stretch(trace=SKYPILOT, first=0.8, last=0.95, step_s=STEP_S),
    _Stretch(trace="skynomad-h100", first=0.0, last=1.0, step_s=600.0),
    _Stretch(trace="spothedge-gcp1", first=0.0, last=1.0),
)
CANDIDATES: Mapping[str, LossesAhead] = {
    f"{excess:g} more for {half_life:g} ticks{', by hour' if by_hour else ''}": LossesAhead(
        excess=excess, half_life_ticks=half_life, by_hour=by_hour
    )
    for excess, half_life, by_hour in (
        (0.0, 1.0, False),  # falls do not cluster
        (0.1, 3.0, False),
        (0.1, 15.0, False),
        (0.3, 3.0, False),
        (0.3, 15.0, False),
        (0.1, 15.0, True),
    )
}


def losses_findings(quick: bool, tell: Tell) -> Findings:
    """Samples over those with persistence: every candidate on the tuning set, the best of them on the held-out one."""
    tuning = TUNING[:1] if quick else TUNING
    names = list(CANDIDATES)[:2] if quick else list(CANDIDATES)
    tell("losses ahead, tuning set")
    gains = {name: _gains(CANDIDATES[name], tuning, quick) for name in names}
    best = max(gains, key=lambda name: fmean(gains[name].values()))
    tell("losses ahead, held-out set")
    held_out = _gains(CANDIDATES[best], HELD_OUT[:1] if quick else HELD_OUT, quick)
    table = StudyTable(
        title="Losses ahead: samples over those of persistence, tuning set",
        columns=["losses reckoned with", *(" ".join(key) for key in next(iter(gains.values()))), "mean"],
        rows=[
            [name, *(f"{each:.4f}" for each in row.values()), f"{fmean(row.values()):.4f}"]
            for name, row in gains.items()
        ],
    )
    rows = [[*key, f"{each:.4f}"] for key, each in held_out.items()]
    chosen = StudyTable(
        title=f"Losses ahead: the same of '{best}', held-out set: {_ratio(held_out)}",
        columns=["model", "stretch", "over persistence"],
        rows=rows,
        texts=2,
    )
    return Findings(checks=[] if quick else [_check(held_out)], tables=[table, chosen], notes=[NOTE])


def _check(held_out: Mapping[tuple[str, str], float]) -> Check:
    """That persistence, which ships, is not behind beyond chance: it fails where the distribution should ship."""
    ratio = _ratio(held_out)
    name = "losses ahead, held out: the best distribution over persistence, low end of the interval"
    return at_most(name, ratio.mean - ratio.off, 1.0)


def _gains(losses: LossesAhead, stretches: Sequence[_Stretch], quick: bool) -> dict[tuple[str, str], float]:
    found = {}
    for stretch in stretches:
        capacity = stretch.capacity()[: QUICK_TICKS if quick else None]
        for model in MODELS[:1] if quick else MODELS:
            plain = _samples(model, capacity, stretch.step_s, None)
            if plain:
                found[model, stretch.name] = _samples(model, capacity, stretch.step_s, losses) / plain
    return found


@lru_cache(maxsize=2 * len(MODELS) * len(HELD_OUT))  # persistence is asked for with every candidate
def _samples(model: str, capacity: tuple[int, ...], step_s: float, losses: LossesAhead | None) -> float:
    return ride(measured_job(model, step_s=step_s), Way(Liveput(losses=losses)), capacity).samples


def _ratio(gains: Mapping[tuple[str, str], float]) -> Ratio:
    return Ratio.of(list(gains.values()))


NOTE = (
    "losses ahead: candidates are chances of another fall in the tick after one, and how long they take to halve; the "
    "chance of a fall in calm and the sizes are learned as it goes"
)
