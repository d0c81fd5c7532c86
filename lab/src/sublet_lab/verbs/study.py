"""`sublet study`: run a claim of ours again, beside what was published."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table

KEPT = "its checks are of whole runs: nothing was written. --quick is a smaller run; 'make claims' keeps each study"
MISSED = 1  # the exit code when a check did not hold


def _complete_study(incomplete: str) -> list[str]:
    from sublet import plugins

    return [name for name in plugins.names("sublet.studies") if name.startswith(incomplete)]


def study(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A name from 'sublet study --list'.", autocompletion=_complete_study),
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="Name all studies, one line each.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller run: a minute or so, two for live.")] = False,
    report: opt.Report = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """With sublet-lab: reproduce a published result, and check every claim anew.

    Ours runs beside it. The exit code is 1 if a claim is missed.
    """
    from sublet.errors import InvalidValue

    if listed:
        _print_list(context, json=opt.wants_document(output, json))
        return
    if not name:
        raise InvalidValue("NAME", name, "a study: sublet study --list names them all")
    if not _run(context, name, quick=quick, report=report, json=opt.wants_document(output, json), quiet=quiet):
        raise typer.Exit(MISSED)


def _run(context: typer.Context, name: str, *, quick: bool, report: Path | None, json: bool, quiet: bool) -> bool:
    from sublet import plugins
    from sublet_lab.studies.report import Report, prepare_folder
    from sublet_lab.studies.study import Study

    found = plugins.load("sublet.studies", name)
    if not isinstance(found, Study):
        raise TypeError(f"{name} is not a study")
    if report is not None:
        prepare_folder(report)
    started_s = time.perf_counter()

    told = [""]

    def tell(what: str) -> None:
        told[0] = what
        if not quiet:
            typer.echo(f"{time.perf_counter() - started_s:6.1f} s  {what}", err=True)
            sys.stderr.flush()

    try:
        findings = found.run(quick, tell)
    except KeyboardInterrupt:
        at = f", at: {told[0]}" if told[0] else ""
        typer.echo(f"{name}: interrupted after {time.perf_counter() - started_s:.1f} s{at}\n  {KEPT}", err=True)
        raise
    done = Report(
        study=found, findings=findings, seconds=time.perf_counter() - started_s, command=command_line(context)
    )
    page = None if report is None else done.write(report)
    if json:
        print_document(done.json())
    else:
        for each in (*findings.tables, done.table()):
            typer.echo(f"{each.title}\n")
            print_table(each.columns, each.rows, words=tuple(range(each.texts)))
            typer.echo()
        print_notes(findings.notes)
    if page is not None:
        typer.echo(f"report: {page}", err=json)
    return done.ok


def _print_list(context: typer.Context, *, json: bool) -> None:
    from sublet import plugins
    from sublet_lab.studies.titles import TITLES

    rows = []
    for name in plugins.names("sublet.studies"):
        title = TITLES.get(name) or getattr(plugins.load("sublet.studies", name), "title", "")
        rows.append([name, str(title)])
    if json:
        listed = [{"name": name, "title": title} for name, title in rows]
        print_document({"schema_version": 1, "command": command_line(context), "studies": listed})
    else:
        print_table(["study", "what it shows"], rows, words=(0, 1))
