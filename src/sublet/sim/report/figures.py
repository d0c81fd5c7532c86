"""The table of a comparison: which figures, in which order, and how people read them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sublet.domain.units import DAY_S, MINUTE_S, SECONDS_PER_H
from sublet.sim.metrics import Metrics
from sublet.sim.report.comparison import Comparison, ratio

NOTHING = "-"


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
