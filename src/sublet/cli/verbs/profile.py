"""`sublet profile`: how a script scales, before money is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table
from sublet.domain.units import GB

if TYPE_CHECKING:
    from sublet.runtime.jobs.spec import JobSpec
    from sublet.runtime.profiling.run import Profiled

__all__ = ["profile"]


INTERRUPTED = 130
WHOLE = 100.0  # samples a second, above which decimals do not matter


def profile(  # noqa: PLR0913 - one argument per option
    context: typer.Context,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script, or a job file.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Of the script.")] = None,
    widths: Annotated[str, typer.Option(metavar="N,N", help="Numbers of workers.")] = "1,2,4",
    batches: Annotated[
        str | None, typer.Option(metavar="N,N", help="Global batches. [default: a few of the script's batch_range]")
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="For all of them, once workers can start.")] = 60.0,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the job. [default: as 'sublet run' names it]")] = "",
    slots_per_node: Annotated[
        int, typer.Option(metavar="N", help="Workers on one node: more nodes talk over a network.")
    ] = 1,
    gpu: Annotated[
        str, typer.Option(metavar="KIND", help="What this machine has, such as H200. [default: as jobs here have it]")
    ] = "",
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Run a script for a minute on this machine, only to measure how it scales: the next run of it begins with that.

    It trains without an end and keeps no checkpoint. Ctrl-C ends it early, with what was measured.
    """
    from sublet.cli.parse.values import parse_counts, parse_kind
    from sublet.runtime.profiling.run import profile_script

    as_json = opt.wants_document(output, json)
    found = profile_script(
        _job(script, arguments or [], name),
        widths=parse_counts("--widths", widths),
        batches=() if batches is None else parse_counts("--batches", batches),
        seconds=seconds,
        slots_per_node=slots_per_node,
        gpu=parse_kind(gpu),
        tell=lambda text: typer.echo(text, err=True),
    )
    if as_json:
        print_document(_document(found, command_line(context)))
    else:
        _print(found)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _job(script: str, arguments: list[str], name: str) -> JobSpec:
    import sys
    from dataclasses import replace

    from sublet.errors import InvalidValue
    from sublet.runtime.jobs.file import job_from_command, job_from_file

    if not script.endswith((".yaml", ".yml")):
        return job_from_command([sys.executable, script, *arguments], name=name)
    if arguments:
        raise InvalidValue("-- ARGUMENTS", arguments, "left out with a job file: it has its own")
    spec = job_from_file(Path(script))
    return replace(spec, name=name) if name else spec


def _print(found: Profiled) -> None:
    rows = [
        [
            str(each.width),
            str(each.batch),
            f"{1e3 * each.row.step_s:,.4g}",
            f"{each.samples_per_s:,.0f}" if each.samples_per_s >= WHOLE else f"{each.samples_per_s:.3g}",
            f"{each.row.error:.0%}",
            f"{each.misfit:+.1%}",
            str(each.reports),
        ]
        for each in found.seen
    ]
    titles = ["workers", "batch", "step ms", "samples/s", "error", "fit off by", "reports"]
    if any(each.memory_bytes for each in found.seen):
        titles.append("memory")
        for row, each in zip(rows, found.seen, strict=True):
            row.append(f"{each.memory_bytes / GB:.3g} GB" if each.memory_bytes else "")
    print_table(titles, rows, words=())
    for path in found.files:
        typer.echo(f"profile: {path}")
    print_notes(found.notes)


def _document(found: Profiled, command: str) -> dict[str, object]:
    measured = [
        {
            "workers": each.width,
            "batch": each.batch,
            "nodes": each.row.nodes,
            "gpu": each.row.gpu,
            "step_s": each.row.step_s,
            "samples_per_s": each.samples_per_s,
            "error": each.row.error,
            "fit_off_by": each.misfit,
            "reports": each.reports,
            "memory_bytes": each.memory_bytes or None,
        }
        for each in found.seen
    ]
    return {
        "schema_version": 1,
        "command": command,
        "measured": measured,
        "files": [str(path) for path in found.files],
        "seconds": found.seconds,
        "interrupted": found.interrupted,
        "notes": list(found.notes),
    }
