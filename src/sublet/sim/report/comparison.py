"""One workload under one or more policies, as values to print, to plot and to write down."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sublet.domain.quantity import named
from sublet.errors import InvalidValue
from sublet.sim.metrics import Metrics
from sublet.sim.simulator import Cloud, Run
from sublet.sim.workloads.workload import Workload

SCHEMA_VERSION = 1


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
