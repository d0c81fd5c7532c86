"""`sublet inspect`: what a training script is, and what will go wrong with it."""

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
    """Read a training script: is it distributed, does it save and load, what goes wrong, what to change."""
    from sublet.cli.work.script.advice import inspect as look
    from sublet.cli.work.script.advice import loss_of
    from sublet.cli.work.script.facts import look_at
    from sublet.cli.work.script.reading import Script

    read = Script.read(script)
    facts = look_at(read)
    found = look(read, facts)
    if opt.wants_document(output, json):
        print_document(found.document(str(script)))
        return
    kinds = {
        "framework": facts.frameworks,
        "distributed": sorted({what for what, _ in facts.distributed}) or ["no"],
        "optimizer": [f"{made.kind} {made.name}" for made in facts.optimizers] or ["none is made here"],
        "scheduler": [f"{made.kind} {made.name}" for made in facts.schedulers],
        "scaler": [made.name for made in facts.scalers],
        "loader": [f"{made.kind} {made.name}" for made in facts.loaders],
        "loss": [loss_of(facts)],
        "saves": [f"line {line}" for line in facts.saves] or ["no"],
        "loads": [f"line {line}" for line in facts.loads] or ["no"],
        "tracker": facts.trackers,
    }
    typer.echo(f"{script}")
    for name, values in kinds.items():
        if values:
            typer.echo(f"  {name:<12} {', '.join(values)}")
    for each in found.findings:
        at = f"line {each.line}: " if each.line else ""
        typer.echo(f"  - {at}{each.what}\n    next: {each.do}")
    if found.converted is not None:
        ways = {"session": "elastic at any width", "checkpointed": "never starts over; its loop stays its own"}
        typer.echo(f"  next: sublet convert {script} shows the change ({ways[found.converted.how]})")
    elif found.by_hand is not None and not facts.has_session:
        typer.echo(f"  not converted: line {found.by_hand.line}: {found.by_hand.what}\n    next: {found.by_hand.do}")
