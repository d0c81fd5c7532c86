"""How far a run is, on standard error: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

__all__ = ["ReportProgress", "show_progress"]

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
