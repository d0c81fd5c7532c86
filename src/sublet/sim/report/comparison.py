"""One workload under one or more policies, as values to print, to plot and to write down."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sublet.domain.quantity import named
from sublet.domain.units import DAY_S, MINUTE_S, SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.sim.record import Metrics
from sublet.sim.simulator import Cloud, Run
from sublet.sim.workloads.workload import Workload

__all__ = [
    "SCHEMA_VERSION",
    "Comparison",
    "duration",
    "json_from_comparison",
    "json_from_only_run",
    "ratio",
    "table_from_comparison",
]

NOTHING = "-"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Figure:
    title: str
    text: Callable[[Metrics, Metrics], str]  # of a run, beside the first one
    when: Callable[[Comparison], bool] = lambda _: True


def duration(seconds: float) -> str:
    """`42.5s`, `12m05s`, `1h59m` or `3d04h`: three figures are as much as anyone compares."""
    if not math.isfinite(seconds):
        return NOTHING
    if round(seconds, 1) < MINUTE_S:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < SECONDS_PER_H:
        return f"{whole // 60}m{whole % 60:02d}s"
    minutes = round(seconds / MINUTE_S)
    if minutes < 2 * DAY_S / MINUTE_S:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = round(seconds / SECONDS_PER_H)
    return f"{hours // 24}d{hours % 24:02d}h"


def table_from_comparison(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Titles, and one row of texts per policy; the first column is the policy."""
    base = comparison.runs[comparison.baseline].metrics
    shown = [figure for figure in _FIGURES if figure.when(comparison)]
    titles = ["policy", *(figure.title.format(base=comparison.baseline) for figure in shown)]
    rows = [[policy, *(figure.text(run.metrics, base) for figure in shown)] for policy, run in comparison.runs.items()]
    return titles, rows


def _several(comparison: Comparison) -> bool:
    return len(comparison.runs) > 1


def _some_unfinished(comparison: Comparison) -> bool:
    return any(run.unfinished for run in comparison.runs.values())


def _some_lost(comparison: Comparison) -> bool:
    return any(run.metrics.losses for run in comparison.runs.values())


def _plain(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else NOTHING


def _times(value: float, base: float) -> str:
    return f"{_plain(ratio(value, base), '.2f')}x"


_FIGURES = (
    _Figure("mean", lambda m, _: duration(m.mean_s)),
    _Figure("vs {base}", lambda m, base: _times(m.mean_s, base.mean_s), _several),
    _Figure("p50", lambda m, _: duration(m.p50_s)),
    _Figure("p99", lambda m, _: duration(m.p99_s)),
    _Figure("GPU-hours", lambda m, _: f"{m.gpu_hours:,.1f}"),
    _Figure("USD", lambda m, _: f"{m.usd:,.2f}"),
    _Figure("vs {base}", lambda m, base: _times(m.usd, base.usd), _several),
    _Figure("utilisation", lambda m, _: _plain(m.utilisation, ".1%")),
    _Figure("rescales", lambda m, _: f"{m.rescales:,}"),
    _Figure("lost nodes", lambda m, _: f"{m.losses:,}", _some_lost),
    _Figure("unfinished", lambda m, _: f"{m.jobs - m.finished:,}", _some_unfinished),
    _Figure("jobs/s", lambda m, _: _plain(m.jobs_per_s, ",.0f")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs by policy, in the order asked for; ratios are to the first. `command` repeats all of it."""

    command: str
    workload: Workload
    cloud: Cloud
    seed: int
    runs: Mapping[str, Run]
    notes: Mapping[str, tuple[str, ...]]  # policy -> what is special about its run

    def __post_init__(self) -> None:
        if not self.runs:
            raise InvalidValue("runs", dict(self.runs), "at least one run")
        for policy in self.runs:
            named("policy", policy)

    @property
    def baseline(self) -> str:
        """The policy that the others are measured against."""
        return next(iter(self.runs))

    @property
    def common_notes(self) -> tuple[str, ...]:
        """Assumptions for all runs: about the jobs, then about the cloud."""
        return (*self.workload.notes, *self.cloud.notes)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The common ones, then those of each run."""
        several = len(self.runs) > 1
        own = [f"{policy}: {note}" if several else note for policy in self.runs for note in self.notes.get(policy, ())]
        return (*self.common_notes, *own)


def ratio(value: float, base: float) -> float:
    """How many times `base`; NaN where that has no meaning."""
    return value / base if base else math.nan


def json_from_comparison(comparison: Comparison) -> dict[str, Any]:
    """The whole of it; a number that does not exist (no job ended) is null."""
    base = comparison.runs[comparison.baseline].metrics
    return {
        **_head(comparison),
        "baseline": comparison.baseline,
        "runs": [
            {
                "policy": policy,
                "metrics": _json_from_metrics(run.metrics),
                "ratios": {
                    "mean_s": _number(ratio(run.metrics.mean_s, base.mean_s)),
                    "usd": _number(ratio(run.metrics.usd, base.usd)),
                },
                "unfinished": list(run.unfinished),
                "notes": list(comparison.notes.get(policy, ())),
            }
            for policy, run in comparison.runs.items()
        ],
        "notes": list(comparison.common_notes),
    }


def json_from_only_run(comparison: Comparison) -> dict[str, Any]:
    """The same, flat, when there is one run."""
    (policy, run), *_ = comparison.runs.items()
    return {
        **_head(comparison),
        "policy": policy,
        "metrics": _json_from_metrics(run.metrics),
        "unfinished": list(run.unfinished),
        "notes": list(comparison.all_notes),
    }


def _head(comparison: Comparison) -> dict[str, Any]:
    workload, cloud = comparison.workload, comparison.cloud
    burn = cloud.budget.burn
    return {
        "schema_version": SCHEMA_VERSION,
        "command": comparison.command,
        "workload": workload.name,
        "source": workload.source,
        "licence": workload.licence,
        "seed": comparison.seed,
        "budget_usd_per_h": None if burn is None else burn.usd_per_h,
        "offers": [
            {
                "id": offer.id,
                "gpu": offer.gpu,
                "gpus_per_node": offer.gpus_per_node,
                "market": str(offer.market),
                "usd_per_h": offer.price.usd_per_h,
            }
            for offer in cloud.offers
        ],
        "physics": dataclasses.asdict(cloud.physics),
    }


def _json_from_metrics(metrics: Metrics) -> dict[str, float | None]:
    return {name: _number(value) for name, value in dataclasses.asdict(metrics).items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
