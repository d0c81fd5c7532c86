"""Whether a controller is well, and its counters: what probes and Prometheus ask."""

from __future__ import annotations

from collections.abc import Iterable

from sublet import __version__
from sublet.runtime.controller.core import Controller
from sublet.runtime.controller.memory import JobRecord
from sublet.runtime.controller.watch import Gauges, Histogram
from sublet.runtime.controller_api.views import HealthView, HistogramView, MetricsView
from sublet.runtime.settings import Settings

FRESH_S = 30.0  # wall: a controller that has not compared itself with its provider for so long is not ready


def health_view(controller: Controller, settings: Settings, *, started: bool, wall_up_s: float) -> HealthView:
    """Alive, and ready or not."""
    ago_s = controller.gauges.reconciled_ago_s
    fresh = wall_up_s < FRESH_S or (ago_s is not None and ago_s < FRESH_S)
    why = controller.decisions.overdue if fresh else "it has not compared itself with its provider lately"
    return {
        "ready": started and not why and not controller.stopping,
        "started": started,
        "why": why if started else "it has not started yet",
        "version": __version__,
        "provider": settings.provider,
        "engine": settings.engine,
        "policy": settings.policy,
        "now_s": controller.now_s(),
        "speedup": controller.clock.speedup,
        "wall_up_s": wall_up_s,
        "last_reconcile_wall_s": ago_s,
        "stopping": controller.stopping,
        "earlier_jobs": controller.archive.shelf.sums().jobs,
    }


def metrics_view(gauges: Gauges, records: Iterable[JobRecord], *, price_age_s: float | None) -> MetricsView:
    """Counters for Prometheus."""
    return {
        "notice_to_commit_s": _histogram_view(gauges.notice_to_commit_s),
        "recovery_s": _histogram_view(gauges.recovery_s),
        "decision_s": _histogram_view(gauges.decision_s),
        "resizes": dict(gauges.resizes),
        "provider_calls": {call: dict(outcomes) for call, outcomes in gauges.calls.items()},
        "orphans_found": gauges.orphans,
        "checkpoints_damaged": gauges.damaged,
        "short_of_memory": gauges.short_of_memory,
        "alarms": dict(gauges.alarms),
        "reconcile_s": gauges.reconcile_s,
        "reconciled_at": gauges.reconciled_at,
        "price_age_s": price_age_s,
        "steps": {record.id: record.steps_made for record in records},
    }


def _histogram_view(histogram: Histogram) -> HistogramView:
    return {"bounds": list(histogram.bounds), "counts": list(histogram.counts), "total": histogram.total}
