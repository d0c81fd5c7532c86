"""`sublet convert`: the change that makes a script elastic, as a diff."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

__all__ = ["convert"]


def convert(
    script: Annotated[Path, typer.Argument(help="The script that trains; nothing of it is run.")],
    write: Annotated[
        bool, typer.Option("-w", "--write", help="Change the file; the old text is kept beside it.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Print the change that makes a training script elastic, as a diff; nothing is written without -w."""
    from sublet.cli.work.script.convert import convert as change
    from sublet.cli.work.script.reading import Script
    from sublet.cli.work.script.splice import CannotConvert
    from sublet.cli.work.script.writing import write_beside
    from sublet.errors import BadInput

    read = Script.read(script)
    try:
        made = change(read)
    except CannotConvert as error:
        raise BadInput(f"{script}:{error.line}", error.why, hint=error.do) from None
    diff = made.diff(read)
    backup = write_beside(read, made.text) if write else None
    if opt.wants_document(output, json):
        kept = None if backup is None else str(backup)
        print_document(
            {
                "schema_version": 1,
                "script": str(script),
                "how": made.how,
                "diff": diff,
                "written": write,
                "backup": kept,
            }
        )
        return
    typer.echo(diff, nl=False)
    if backup is not None:
        typer.echo(f"{script} is changed; what it was is in {backup}", err=True)
    else:
        typer.echo(f"nothing is written; next: sublet convert -w {script}", err=True)
