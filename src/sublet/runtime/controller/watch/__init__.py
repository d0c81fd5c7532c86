"""News for people: gauges, alarms, the history."""

from __future__ import annotations

from sublet.runtime.controller.watch.alarms import (
    Access,
    AlarmKind,
    Alarms,
    CallOutcome,
    Gauges,
    Histogram,
    ResizeCause,
    Throttling,
)
from sublet.runtime.controller.watch.history import Chronicle, HistoryRow, gist_of, refusal_among, rows_from_plan, width

__all__ = [
    "Access",
    "AlarmKind",
    "Alarms",
    "CallOutcome",
    "Chronicle",
    "Gauges",
    "Histogram",
    "HistoryRow",
    "ResizeCause",
    "Throttling",
    "gist_of",
    "refusal_among",
    "rows_from_plan",
    "width",
]
