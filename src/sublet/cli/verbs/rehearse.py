"""`sublet rehearse`: whether a script is elastic, by running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table

if TYPE_CHECKING:
    from sublet.runtime.rehearsal.report import Difference, Report

__all__ = ["print_report", "rehearse"]

EXIT_CODES = {"alike": 0, "differs": 1, "cannot run": 2}
RUNS = {
    "one": "one worker",
    "seed": "the same, another seed",
    "width": "{workers} workers",
    "kill": "the same, with kills and a restart",
}


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
        print_document(_document(found, command_line(context)))
    else:
        print_report(found)
    raise typer.Exit(EXIT_CODES[found.verdict])


def print_report(found: Report) -> None:
    """As a table of its runs, and what differs."""
    rows = [
        [
            RUNS[run.name].format(workers=run.workers),
            *(str(run.steps), run.weights, run.loss, run.lines, run.files, f"{run.seconds:.1f} s"),
        ]
        for run in found.runs
    ]
    print_table(["run", "steps", "weights", "s.loss", "lines", "files", "took"], rows, words=())
    typer.echo()
    if found.why:
        typer.echo(f"It cannot run:\n{found.why}")
        return
    typer.echo(f"{found.verdict}." if found.differences else "alike: nothing differs beyond rounding and noise.")
    for each in found.differences:
        typer.echo(_told(each))
    for each in found.noise[:1]:
        typer.echo(f"noise: with another seed, {_where(each)}: {each.evidence}")
    print_notes(found.notes)


def _told(each: Difference) -> str:
    which = {"width": "at more workers", "kill": "after a kill"}.get(each.run, each.run)
    return f"- {which}, {_where(each)}: {each.evidence}\n    {each.advice}"


def _where(each: Difference) -> str:
    step = "" if each.step is None else f"after step {each.step}, "
    return f"{step}{each.kind}" + (f" {each.name}" if each.name and each.kind in ("weights", "file") else "")


def _document(found: Report, command: str) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "schema_version": 1,
        "command": command,
        "verdict": found.verdict,
        "why": found.why,
        "runs": [asdict(run) for run in found.runs],
        "differences": [asdict(each) for each in found.differences],
        "noise": [asdict(each) for each in found.noise],
        "notes": list(found.notes),
    }
