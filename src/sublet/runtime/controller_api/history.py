"""The past of jobs as users see it: rows of the stored history, and the curve of a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypedDict

from sublet.kernel.kernel import Kernel
from sublet.runtime.archive import Kept
from sublet.runtime.controller.memory import JobRecord
from sublet.runtime.controller_api.views import DayView, EventView, SpentAt, days_from
from sublet.runtime.store import Store, StoredRow

MOST = 1000  # changes of each offer, the newest


class PriceView(TypedDict):
    """One offer."""

    offer_id: str
    market: str
    changes: list[tuple[float, float]]  # from when (cloud seconds), and USD per hour of a node from then on


class Prices:
    """Of one controller; `kernel` is asked for each time, because recovery puts another one in its place."""

    def __init__(self, kernel: Callable[[], Kernel]) -> None:
        self._kernel = kernel

    def list(self) -> list[PriceView]:
        """Of all that is on offer."""
        kernel = self._kernel()
        return [
            {
                "offer_id": offer.id,
                "market": str(offer.market),
                "changes": [
                    (since_us / 1e6, price.usd_per_h) for since_us, price in kernel.ledger.prices[offer.id][-MOST:]
                ],
            }
            for offer in kernel.supply.offers.values()
        ]


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
        "by": row.facts.get("by", ""),
        "workers": row.facts.get("workers"),
        "grid": row.facts.get("grid", ""),
        "nodes_held": row.facts.get("nodes_held", 0),
        "usd_per_h": row.facts.get("usd_per_h", 0.0),
        "usd_total": row.facts.get("usd_total", 0.0),
    }


def _cut_view(cut: int, folder: Path, rows: Sequence[EventView]) -> EventView:
    """Stands for all rows up to this one, which are not in the store any more; of one job, none of them may be."""
    first = rows[0] if rows else None
    return {
        "seq": cut,
        "at_s": 0.0 if first is None else first["at_s"],
        "at": "" if first is None else first["at"],
        "kind": "Archived",
        "job_id": "",
        "node_id": "",
        "text": f"rows 1 to {cut} are in {folder}/history-*.jsonl.gz",
        "by": "",
        "workers": None,
        "grid": "",
        "nodes_held": 0 if first is None else first["nodes_held"],
        "usd_per_h": 0.0 if first is None else first["usd_per_h"],
        "usd_total": 0.0 if first is None else first["usd_total"],
    }


class Curves:
    """Of one controller; `record` finds a job, or raises NoSuchJob."""

    def __init__(self, record: Callable[[str], JobRecord]) -> None:
        self._record = record

    def of(self, job_id: str) -> list[tuple[int, float]]:
        """(step, loss), since this controller began; some hundred at most."""
        return list(self._record(job_id).curve.points)


def event_views(store: Store, job_id: str | None, *, after: int, limit: int, newest: bool) -> list[EventView]:
    """The rows after this one; where some of them are in the archive, one row first that says so."""
    rows = [event_view(row) for row in store.history(job_id, after, limit, newest=newest)]
    if newest and len(rows) == limit:  # what is before them was not asked for
        return rows
    cut = store.cut_until(Kept.HISTORY)
    return [_cut_view(cut, store.path.parent, rows), *rows] if after < cut else rows


def days(store: Store, unix_s: float, spent_usd: float) -> list[DayView]:
    """The dollars of each day, out of the sums that rows have."""
    now = datetime.fromtimestamp(unix_s, UTC)

    @cache
    def mark(seq: int) -> SpentAt:
        (row,) = store.history(None, seq - 1, 1)
        return SpentAt(datetime.fromisoformat(row.at), float(row.facts.get("usd_total", 0.0)))

    newest = store.history(None, 0, 1, newest=True)
    last = newest[0].seq if newest else 0
    return days_from(mark, store.cut_until(Kept.HISTORY) + 1, last, SpentAt(now, spent_usd))
