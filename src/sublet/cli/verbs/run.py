"""`sublet run`: a command becomes a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from sublet.cli import options as opt

__all__ = ["run"]


def run(  # noqa: PLR0913 - one argument per option
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command of every worker.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Without it: from the command.")] = "",
    workers: Annotated[str, typer.Option(metavar="A..B", help="How many workers.")] = "1",
    spot: Annotated[str, typer.Option(metavar="MARKET", help="auto, spot or on-demand.")] = "auto",
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable; may be repeated.")] = None,
    purse: opt.Purse = None,
    hurry: opt.Hurry = False,
    on_node_loss: opt.OnNodeLoss = None,
    sdk: Annotated[
        bool | None, typer.Option("--sdk/--no-sdk", help="Whether the script uses sublet.train; without it: look.")
    ] = None,
    dry_run: opt.DryRun = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for its end.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Submit a command as a job, and show its output until it ends (Ctrl-C leaves it running)."""
    from sublet.cli.parse.values import parse_money, parse_variable, parse_workers
    from sublet.cli.work.submission import submit_spec
    from sublet.runtime.jobs.bounds import node_loss
    from sublet.runtime.jobs.file import job_from_command

    spec = job_from_command(
        command,
        name=name,
        workers=parse_workers(workers),
        env=dict(parse_variable(text) for text in env or ()),
        market=spot,
        sdk=sdk,
        purse_usd=None if purse is None else parse_money("--purse", purse).usd,
    )
    spec = replace(spec, hurry=hurry, on_node_loss=node_loss(on_node_loss or spec.on_node_loss))
    as_json = opt.wants_document(output, json)
    submit_spec(spec, dry_run=dry_run, follow=not detach and not as_json, as_json=as_json)
