"""Run one workload under policies and tell what came of it: what `simulate` and `compare` share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.parse import Asked, forecast_from, scene_from, workload_from
from sublet.cli.print.progress import Tell, watched
from sublet.cli.print.tables import print_notes, print_table, screen_width, table_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sublet.domain.actions import Action
    from sublet.domain.events import Event
    from sublet.domain.plan import Policy
    from sublet.sim.report.comparison import Comparison

__all__ = ["compared", "tell"]


def compared(asked: Asked, policies: Mapping[str, Policy], *, command: str, log: Path | None = None) -> Comparison:
    """Everything is read and checked before the first run starts, the report's folder included."""
    from sublet.kernel.journal import header_line, line_from
    from sublet.sim.report.comparison import Comparison
    from sublet.sim.report.folder import prepare_folder, replacing
    from sublet.sim.simulator import simulate

    workload = workload_from(asked)
    scene = scene_from(asked, workload)
    expected, told = forecast_from(asked, workload)
    cloud = replace(scene.cloud, notes=(*scene.cloud.notes, *told))
    if asked.report is not None:
        prepare_folder(asked.report)
    runs = {}
    with (
        nullcontext() if log is None else replacing(log) as journal,
        watched(list(policies), len(workload), quiet=asked.quiet) as tell_progress,
    ):
        watch = None
        if journal is not None:
            journal.write(header_line(cloud.offers, cloud.limits, cloud.budget, cloud.quotas) + "\n")
            write = journal.write

            def watch(event: Event, actions: Sequence[Action]) -> None:
                write(line_from(event, actions) + "\n")

        for name, policy in policies.items():
            tell_progress(name, 0)
            runs[name] = simulate(
                workload.jobs,
                policy,
                cloud,
                seed=asked.seed,
                expected=expected,
                keep_segments=asked.report is not None,
                watch=watch,
                progress=partial(_tell_jobs, tell_progress, name),
            )
    notes = {name: scene.notes_on(run) for name, run in runs.items()}
    return Comparison(command=command, workload=workload, cloud=cloud, seed=asked.seed, runs=runs, notes=notes)


def _tell_jobs(tell_progress: Tell, policy: str, done: int, at_s: float) -> None:
    del at_s  # the bar counts jobs
    tell_progress(policy, done)


def tell(comparison: Comparison, report: Path | None, answer: Mapping[str, Any] | None) -> None:
    """Write the report if one is wanted; then print `answer` as JSON, or the table."""
    from sublet.cli.print.tables import print_document
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
