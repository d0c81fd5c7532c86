"""`sublet inspect`: what `sublet convert` would do with a training script, and what there is to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

__all__ = ["inspect"]


def inspect(
    script: Annotated[Path, typer.Argument(help="The script that trains; nothing of it is run.")],
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Say whether a training script can be converted, and which lines to look at; of one with a session, the lines."""
    from sublet.cli.print.looks import look_lines
    from sublet.cli.work.script.convert import inspect as look
    from sublet.cli.work.script.reading import Script

    found = look(Script.read(script))
    if opt.wants_document(output, json):
        print_document(found.document(str(script)))
        return
    typer.echo(f"{script}")
    if found.refused is not None:
        typer.echo(f"  not converted: line {found.refused.line}: {found.refused.why}\n    next: {found.refused.do}")
    elif found.made is not None:
        how = "a session" if found.made.how == "session" else f"the integration for {found.made.how}"
        typer.echo(f"  sublet convert {script} makes it elastic, with {how}")
    title = "  look at these lines:" if found.made is None else "  look at these lines, once it is converted:"
    for line in look_lines(found.looks, title):
        typer.echo(line)
    if found.refused is None and not found.looks:
        typer.echo("  nothing to look at")
