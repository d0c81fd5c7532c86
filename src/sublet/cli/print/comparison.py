"""How `simulate` and `compare` answer: progress, the table of runs with notes or a document, and the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.print.tables import print_document, print_notes, print_table, screen_width, table_width

if TYPE_CHECKING:
    from sublet.sim.report.comparison import Comparison


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


ReportProgress = Callable[[str, int], None]  # (policy, jobs that have ended)
LINE_EVERY_S = 5.0


@contextmanager
def show_progress(policies: Sequence[str], jobs: int, *, quiet: bool) -> Iterator[ReportProgress]:
    """Hand out a function to report progress to; what it shows ends with the block."""
    if quiet:
        yield lambda _policy, _done: None
    elif sys.stderr.isatty():
        with _bars(policies, jobs) as tell:
            yield tell
    else:
        yield _lines(jobs)


@contextmanager
def _bars(policies: Sequence[str], jobs: int) -> Iterator[ReportProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} jobs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {policy: progress.add_task(policy, total=jobs, start=False) for policy in policies}

        def tell(policy: str, done: int) -> None:
            progress.start_task(tasks[policy])
            progress.update(tasks[policy], completed=done)

        yield tell


def _lines(jobs: int) -> ReportProgress:
    last_s = time.monotonic()

    def tell(policy: str, done: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= LINE_EVERY_S:
            last_s = time.monotonic()
            typer.echo(f"{policy}: {done:,} of {jobs:,} jobs", err=True)

    return tell
