"""How `simulate` and `compare` answer: the table of runs and its notes, or a document, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.print.tables import print_document, print_notes, print_table, screen_width, table_width

if TYPE_CHECKING:
    from sublet.sim.report.comparison import Comparison

__all__ = ["print_comparison"]


def print_comparison(comparison: Comparison, report: Path | None, answer: Mapping[str, Any] | None) -> None:
    """Write the report if one is wanted; then print `answer` as JSON, or the table."""
    from sublet.domain.quantity import counted
    from sublet.sim.report.figures import duration, table_from_comparison
    from sublet.sim.report.folder import write_report

    page = None if report is None else write_report(comparison, report)
    if answer is not None:
        print_document(answer)
    else:
        workload = comparison.workload
        typer.echo(f"{workload.name}: {counted(len(workload), 'job')} arriving over {duration(workload.span_s)}\n")
        titles, rows = table_from_comparison(comparison)
        width = screen_width()
        if width is not None and table_width(titles, rows) > width:
            titles, *rows = ([*column] for column in zip(titles, *rows, strict=True))
        print_table(titles, rows, words=(0,))
        typer.echo()
        print_notes(comparison.all_notes)
    if page is not None:
        typer.echo(f"report: {page}", err=answer is not None)
