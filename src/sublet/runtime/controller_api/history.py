"""Rows of the stored history, as users see them."""

from __future__ import annotations

from sublet.runtime.controller_api.views import EventView
from sublet.runtime.store import StoredRow

__all__ = ["event_view"]


def event_view(row: StoredRow) -> EventView:
    """One row."""
    return {
        "seq": row.seq,
        "at_s": row.at_s,
        "at": row.at,
        "kind": row.kind,
        "job_id": row.job_id,
        "node_id": row.node_id,
        "text": row.text,
        "workers": row.facts.get("workers"),
        "nodes_held": row.facts.get("nodes_held", 0),
        "usd_per_h": row.facts.get("usd_per_h", 0.0),
        "usd_total": row.facts.get("usd_total", 0.0),
    }
