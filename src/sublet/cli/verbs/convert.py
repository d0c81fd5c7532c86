"""`sublet convert`: the change that makes a script elastic, as a diff."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sublet.cli.work.script.looks import Look

__all__ = ["convert", "look_lines"]


def convert(
    script: Annotated[Path, typer.Argument(help="The script that trains.")],
    write: Annotated[
        bool, typer.Option("-w", "--write", help="Change the file; the old text is kept beside it.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Print the change that makes a training script elastic, as a diff; nothing is written without -w."""
    from sublet.cli.work.script.convert import convert as change
    from sublet.cli.work.script.edits import CannotConvert
    from sublet.cli.work.script.reading import Script
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
        print_document(
            {
                "schema_version": 1,
                "script": str(script),
                "how": made.how,
                "diff": diff,
                "look_at": [look.document() for look in made.looks],
                "written": write,
                "backup": None if backup is None else str(backup),
            }
        )
        return
    typer.echo(diff, nl=False)
    for line in look_lines(made.looks, "look at these lines of the new text:"):
        typer.echo(line, err=True)
    if backup is not None:
        typer.echo(f"{script} is changed; what it was is in {backup}", err=True)
    else:
        typer.echo(f"nothing is written; next: sublet convert -w {script}", err=True)


def look_lines(looks: Iterable[Look], title: str) -> list[str]:
    """What to look at, as it is printed; nothing if there is nothing."""
    found = [
        f"  - line{'s' * (len(look.lines) > 1)} {', '.join(map(str, look.lines))}: {look.what}\n    next: {look.do}"
        for look in looks
    ]
    return [title, *found] if found else []
