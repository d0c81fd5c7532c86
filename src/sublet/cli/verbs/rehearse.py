"""`sublet rehearse`: whether a script is elastic, by running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, print_document

__all__ = ["rehearse"]


def rehearse(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Of one worker; or a job file.")],
    steps: Annotated[int, typer.Option(metavar="N", help="Of each run.")] = 20,
    workers: Annotated[int, typer.Option(metavar="N", help="Of the third and the fourth run.")] = 2,
    kill_at: Annotated[
        int | None, typer.Option(metavar="STEP", help="When rank 0 is killed. [default: after half of them]")
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="For each run, at most.")] = 120.0,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Run a script some steps at one worker and at two, and with workers killed: what differs is shown.

    Each run has a copy of this folder. Exit codes: 0 all alike, 1 something differs, 2 it cannot run.
    """
    from sublet.cli.print.rehearsal import EXIT_CODES, document_of, print_report
    from sublet.runtime.jobs.file import job_from_command, job_from_file
    from sublet.runtime.rehearsal.rehearse import rehearse_job

    as_json = opt.wants_document(output, json)
    is_file = len(command) == 1 and command[0].endswith((".yaml", ".yml"))
    found = rehearse_job(
        job_from_file(Path(command[0])) if is_file else job_from_command(command),
        steps=steps,
        workers=workers,
        kill_at=kill_at,
        seconds=seconds,
        tell=lambda text: typer.echo(text, err=True),
    )
    if as_json:
        print_document(document_of(found, command_line(context)))
    else:
        print_report(found)
    raise typer.Exit(EXIT_CODES[found.verdict])
