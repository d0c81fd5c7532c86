"""The part of the study of liveput about forecasts: errors of everyone on every trace, and of the default."""

from __future__ import annotations

from collections.abc import Sequence

from sublet.market.traces import load_trace
from sublet_lab.forecasting.score import DEFAULT, PERSISTENCE
from sublet_lab.forecasting.table import MOMENTS_OF_MANY, ErrorRow, error_row, readable_traces
from sublet_lab.studies.study import Check, StudyTable, Tell, at_most

QUICK_MOMENTS = 60


def forecast_checks(quick: bool, tell: Tell) -> tuple[list[Check], list[StudyTable]]:
    """A check per trace that the default is not worse than persistence, and three tables of errors.

    The default is persistence until another has proved to be better, so that on most traces nothing is compared: those
    on which it departs have a check of their own, that it is better there.

    A quick run has fewer moments, and bundled traces only.
    """
    rows = []
    for name in readable_traces(bundled_only=quick):
        tell(f"forecasts of {name}")
        rows.append(error_row(load_trace(name), moments=QUICK_MOMENTS if quick else MOMENTS_OF_MANY))
    return _checks(rows), [
        _table(f"Forecast errors, mean over 12 minutes; {_alike(rows)}", rows, None),
        _table("Forecast errors, 1 minute ahead", rows, 0),
        _table("Forecast errors, 12 minutes ahead", rows, -1),
    ]


def _checks(rows: Sequence[ErrorRow]) -> list[Check]:
    not_worse = [
        at_most(f"{DEFAULT} less {PERSISTENCE}, error on {row.trace}", row.excess, 0.0, unit="instances")
        for row in rows
    ]
    better = [
        at_most(
            f"{DEFAULT} over {PERSISTENCE} where it departs from it: error on {row.trace}",
            row.errors[DEFAULT].mean / row.errors[PERSISTENCE].mean,
            1.0,
        )
        for row in rows
        if row.departs
    ]
    return not_worse + better


def _alike(rows: Sequence[ErrorRow]) -> str:
    return f"on {sum(not row.departs for row in rows)} of {len(rows)} traces {DEFAULT} is {PERSISTENCE} throughout"


def _table(title: str, rows: Sequence[ErrorRow], step: int | None) -> StudyTable:
    names = sorted({name for row in rows for name in row.errors})
    cells = [
        [row.trace, f"{row.moments:,}"]
        + [
            f"{error.mean if step is None else error.per_step[step]:.3f}" if (error := row.errors.get(name)) else "-"
            for name in names
        ]
        for row in rows
    ]
    return StudyTable(title=title, columns=["trace", "moments", *names], rows=cells)
