"""`sublet convert`: the change that makes a script elastic, as a diff, tried by running it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

if TYPE_CHECKING:
    from sublet.runtime.rehearsal.report import Report

__all__ = ["convert"]


def convert(
    script: Annotated[Path, typer.Argument(help="The script that trains.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Of the script, when it is tried.")
    ] = None,
    write: Annotated[
        bool, typer.Option("-w", "--write", help="Change the file; the old text is kept beside it.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse/--no-rehearse", help="Try what comes of it: 'sublet rehearse'.")
    ] = True,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Print the change that makes a training script elastic, as a diff; nothing is written without -w.

    The result is run for some steps at one worker and at two, and with workers killed. If what is trained differs, or
    it cannot run, nothing is written either, and the exit code is 1. Lines and files that differ are told.
    """
    from sublet.cli.print.looks import look_lines
    from sublet.cli.work.script.convert import found_in, tried, write_beside
    from sublet.cli.work.script.reading import CannotConvert, Script
    from sublet.errors import BadInput

    as_json = opt.wants_document(output, json)
    try:
        read, made = found_in(Script.read(script))
    except CannotConvert as error:
        raise BadInput(f"{script}:{error.line}", error.why, hint=error.do) from None
    diff = made.diff(read)
    if not as_json:
        typer.echo(diff, nl=False)
        for line in look_lines(made.looks, "look at these lines of the new text:"):
            typer.echo(line, err=True)
    report = None
    if rehearse:
        report = tried(script, read, made.text, arguments or [], Path.cwd(), lambda said: typer.echo(said, err=True))
    trusted = report is None or report.trains_alike
    backup = write_beside(read, made.text) if write and trusted else None
    if as_json:
        print_document(
            {
                "schema_version": 1,
                "script": str(read.path),
                "how": made.how,
                "diff": diff,
                "look_at": [asdict(look) for look in made.looks],
                "rehearsed": None if report is None else report.verdict,
                "written": backup is not None,
                "backup": None if backup is None else str(backup),
            }
        )
    else:
        _end(read.path, report, backup, write=write)
    if not trusted:
        raise typer.Exit(1)


def _end(script: Path, report: Report | None, backup: Path | None, *, write: bool) -> None:
    from sublet.cli.print.rehearsal import print_report

    if report is not None:
        print_report(report)
        if report.why:
            typer.echo(
                "arguments of the script: sublet convert SCRIPT -- ARGUMENTS; not tried: --no-rehearse", err=True
            )
    if backup is not None:
        typer.echo(f"{script} is changed; what it was is in {backup}", err=True)
    elif write:
        typer.echo(f"nothing is written; all the same: sublet convert -w --no-rehearse {script}", err=True)
    else:
        typer.echo(f"nothing is written; next: sublet convert -w {script}", err=True)
