"""`sublet inspect`: what `sublet convert` would do with a training script, and what there is to look at."""

from __future__ import annotations

from dataclasses import asdict
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
    from sublet.cli.work.script.reading import CannotConvert, Script

    found, looks = look(Script.read(script))
    refused = found if isinstance(found, CannotConvert) else None
    made = None if isinstance(found, CannotConvert) else found
    if opt.wants_document(output, json):
        document = {
            "schema_version": 1,
            "script": str(script),
            "converts_to": None if made is None else made.how,
            "refused": None if refused is None else {"line": refused.line, "why": refused.why, "do": refused.do},
            "look_at": [asdict(each) for each in looks],
        }
        print_document(document)
        return
    typer.echo(f"{script}")
    if refused is not None:
        typer.echo(f"  not converted: line {refused.line}: {refused.why}\n    next: {refused.do}")
    elif made is not None:
        how = "a session" if made.how == "session" else f"the integration for {made.how}"
        typer.echo(f"  sublet convert {script} makes it elastic, with {how}")
    title = "  look at these lines:" if made is None else "  look at these lines, once it is converted:"
    for line in look_lines(looks, title):
        typer.echo(line)
    if refused is None and not looks:
        typer.echo("  nothing to look at")
