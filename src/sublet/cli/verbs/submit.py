"""`sublet submit`: a job file becomes a job."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sublet.cli import options as opt

__all__ = ["submit"]


def submit(  # noqa: PLR0913 - one argument per option
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A job file; - reads standard input.")] = None,
    file_option: Annotated[Path | None, typer.Option("-f", "--file", metavar="FILE", help="The same.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable, above that of the file; may be repeated."),
    ] = None,
    hurry: opt.Hurry = False,
    on_node_loss: opt.OnNodeLoss = None,
    dry_run: opt.DryRun = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="First run it some steps here; not submitted if anything differs.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Then show its output until it ends.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Submit a job file."""
    from sublet.cli.parse.values import parse_variable
    from sublet.cli.work.submission import submit_spec
    from sublet.errors import InvalidValue
    from sublet.runtime.jobs.bounds import node_loss
    from sublet.runtime.jobs.file import job_from_file, job_from_text

    path = file or file_option
    if path is None or (file and file_option):
        raise InvalidValue("FILE", None if path is None else f"{file}, {file_option}", "one job file")
    given = dict(parse_variable(text) for text in env or ())
    if str(path) == "-":
        spec = job_from_text(sys.stdin.read(), source="standard input", base=Path.cwd(), given=given)
    else:
        spec = job_from_file(path, given=given)
    spec = replace(spec, hurry=spec.hurry or hurry, on_node_loss=node_loss(on_node_loss or spec.on_node_loss))
    if rehearse:
        from sublet.cli.print.rehearsal import EXIT_CODES, print_report
        from sublet.runtime.rehearsal.rehearse import rehearse_job

        found = rehearse_job(spec, tell=lambda text: typer.echo(text, err=True))
        if code := EXIT_CODES[found.verdict]:
            print_report(found)
            raise typer.Exit(code)
    submit_spec(spec, dry_run=dry_run, follow=follow, as_json=opt.wants_document(output, json))
